// The values of the launcher's options.
#include "lockstep/launch/options/option_values.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/options/program_command.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

using Cores = std::vector<int>;

TEST(Nproc, TakesNumbersAndWords) {
  EXPECT_EQ(parse_nproc("7"), 7);
  const int cores = static_cast<int>(allowed_cores().size());
  EXPECT_EQ(parse_nproc("cpu"), cores);
  EXPECT_TRUE(is_error(error_of<InvalidArgument>([] { parse_nproc("xpu"); }),
                       ErrorCode::kBadOption, {"xpu", "number"}));
  for (const char* bad : {"", "0", "-1", "2x", "1.5", "many", "100000"}) {
    EXPECT_THROW(parse_nproc(bad), InvalidArgument) << bad;
  }
}

TEST(Nnodes, IsANumberOrARange) {
  EXPECT_EQ(parse_nnodes("3").least, 3);
  EXPECT_EQ(parse_nnodes("3").most, 3);
  EXPECT_EQ(parse_nnodes("1:4").least, 1);
  EXPECT_EQ(parse_nnodes("1:4").most, 4);
  for (const char* bad : {"", ":", "4:1", "0", "1:x", "1:2:3"}) {
    EXPECT_THROW(parse_nnodes(bad), InvalidArgument) << bad;
  }
}

// The table in torchrun's help: 0 none, 1 stdout, 2 stderr, 3 both.
TEST(Streams, HaveTorchrunsSyntax) {
  EXPECT_TRUE(parse_streams("--tee", "0", 2).is_none());
  const auto both = parse_streams("--tee", "3", 2);
  EXPECT_TRUE(has(both.of(1), Streams::kOut));
  EXPECT_TRUE(has(both.of(1), Streams::kErr));
  const auto some = parse_streams("--redirects", "0:1,1:2", 3);
  EXPECT_EQ(some.of(0), Streams::kOut);
  EXPECT_EQ(some.of(1), Streams::kErr);
  EXPECT_EQ(some.of(2), Streams::kNone);
}

TEST(Streams, RefuseWhatIsNotTheirSyntax) {
  for (const char* bad :
       {"", "4", "-1", "0:", ":1", "0:4", "2:1", "a:1", "0:1;1:2", "0:1,,"}) {
    const auto text = error_of<InvalidArgument>(
        [&] { parse_streams("--redirects", bad, 2); });
    EXPECT_TRUE(is_error(text, ErrorCode::kBadOption, {"--redirects"})) << bad;
  }
}

TEST(Ranks, MustBeThoseOfThisNode) {
  EXPECT_EQ(parse_ranks("--local-ranks-filter", "0,2", 3), (Cores{0, 2}));
  EXPECT_TRUE(parse_ranks("--local-ranks-filter", "", 3).empty());
  EXPECT_THROW(parse_ranks("--local-ranks-filter", "3", 3), InvalidArgument);
}

TEST(Signals, GoByTheirNames) {
  EXPECT_EQ(parse_signals("SIGTERM,SIGUSR1,SIGTERM"),
            (std::vector<int>{SIGTERM, SIGUSR1}));
  EXPECT_EQ(parse_signals("SIGINT, SIGIO"), (std::vector<int>{SIGINT, SIGIO}));
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_TRUE(
      is_error(error_of<InvalidArgument>([] { parse_signals("SIGTREM"); }),
               ErrorCode::kBadOption, {"'SIGTREM'", "'SIGTERM'"}));
  EXPECT_THROW(parse_signals("SIGKILL"), InvalidArgument);
}

TEST(Filters, AreSeparatedByCommas) {
  using Filters = std::vector<std::string>;
  const auto parse = [](const std::string& text) {
    return parse_filters("--duplicate-stdout-filters", text);
  };
  EXPECT_EQ(parse(""), Filters());
  EXPECT_EQ(parse("apple,two words"), (Filters{"apple", "two words"}));
  EXPECT_EQ(parse("a,,b,c"), (Filters{"a,b", "c"}));
  EXPECT_EQ(parse("a,,,b"), (Filters{"a,", "b"}));
  for (const char* bad : {",", "a,", ",a"}) {
    EXPECT_TRUE(is_error(error_of<InvalidArgument>([&] { parse(bad); }),
                         ErrorCode::kBadOption,
                         {"--duplicate-stdout-filters", bad}))
        << bad;
  }
}

// The rules of Python's string.Template.
TEST(Template, ReplacesOnlyTheNamesThatItKnows) {
  const auto fill = [](const std::string& text) {
    return fill_template(text, {{"rank", "3"}, {"local_rank", "1"}});
  };
  EXPECT_EQ(fill("[${rank}/$local_rank]: "), "[3/1]: ");
  EXPECT_EQ(fill("$rank2 ${other} $other ${rank $ $"),
            "$rank2 ${other} $other ${rank $ $");
  EXPECT_EQ(fill("$$rank $${rank} $$"), "$rank ${rank} $");
  EXPECT_EQ(fill("$rank$rank"), "33");
}

TEST(ProgramCommand, RunsScriptsByPython) {
  const TemporaryFolder folder;
  const auto script = folder.path("train.py");
  write_text(script, "");
  ::setenv("PYTHON_EXEC", "/opt/python", 1);
  using Words = std::vector<std::string>;
  EXPECT_EQ(program_command({script, "-x"}, ProgramKind::kByName),
            (Words{"/opt/python", "-u", script, "-x"}));
  EXPECT_EQ(program_command({"a.b", "-x"}, ProgramKind::kPythonModule),
            (Words{"/opt/python", "-u", "-m", "a.b", "-x"}));
  const auto unnamed = folder.path("train");
  write_text(unnamed, "");
  EXPECT_EQ(program_command({unnamed}, ProgramKind::kPythonScript),
            (Words{"/opt/python", "-u", unnamed}));
  ::unsetenv("PYTHON_EXEC");
  EXPECT_EQ(program_command({script}, ProgramKind::kExecutable),
            (Words{script}));
  EXPECT_EQ(program_command({"./a", "b"}, ProgramKind::kByName),
            (Words{"./a", "b"}));
  EXPECT_THROW(program_command({}, ProgramKind::kByName), InvalidArgument);
}

TEST(ProgramCommand, TakesThePythonOfTheShell) {
  const TemporaryFolder folder;
  const auto script = folder.path("train.py");
  write_text(script, "");
  const auto python = [&] {
    return program_command({script}, ProgramKind::kByName).front();
  };
  ::unsetenv("PYTHON_EXEC");
  ::unsetenv("VIRTUAL_ENV");
  EXPECT_EQ(python(), "python3");
  // A virtual environment without an interpreter is skipped.
  ::setenv("VIRTUAL_ENV", folder.path("venv").c_str(), 1);
  EXPECT_EQ(python(), "python3");
  const auto own = folder.path("venv/bin/python3");
  write_text(own, "");
  std::filesystem::permissions(own, std::filesystem::perms::owner_all);
  EXPECT_EQ(python(), own);
  ::setenv("PYTHON_EXEC", "/opt/python", 1);
  EXPECT_EQ(python(), "/opt/python");
  ::unsetenv("PYTHON_EXEC");
  ::unsetenv("VIRTUAL_ENV");
}

TEST(ProgramCommand, NamesWhatMayHaveBeenMeant) {
  const TemporaryFolder folder;
  write_text(folder.path("train.py"), "");
  const auto text = error_of<LaunchError>([&] {
    program_command({folder.path("trian.py")}, ProgramKind::kByName);
  });
  EXPECT_TRUE(is_error(text, ErrorCode::kProcessStart,
                       {folder.path("trian.py"), folder.path("train.py")}));
}

TEST(FindProgram, SearchesThePathThatTheWorkerWillHave) {
  const TemporaryFolder folder;
  const auto program = folder.path("tool");
  write_text(program, "#!/bin/sh\n");
  const auto find = [&](const std::string& name) {
    return find_program(name, {{"PATH", "/nowhere:" + folder.path()}});
  };
  EXPECT_TRUE(is_error(error_of<LaunchError>([&] { find("tool"); }),
                       ErrorCode::kProcessStart, {program, "chmod +x"}));
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  EXPECT_EQ(find("tool"), program);
  EXPECT_EQ(find(program), program);
  EXPECT_THROW(find("sh"), LaunchError);
  EXPECT_TRUE(is_error(error_of<LaunchError>([&] { find("tol"); }),
                       ErrorCode::kProcessStart, {"'tol'", "$PATH"}));
}

}  // namespace
}  // namespace lockstep::launch
