
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/launchers.h"

namespace lockstep {
namespace {

TEST(FirstHost, IsTheFirstOfTheList) {
  for (const auto& [list, host] :
       {std::pair("login", "login"), std::pair("a,b", "a"),
        std::pair("node[03-05,9],login", "node03"),
        std::pair("node[007]", "node007"),
        std::pair("rack[0-1]-node[12,14-15].cluster", "rack0-node12.cluster"),
        std::pair("[1-2]", "1"), std::pair("gpu-a.b_c", "gpu-a.b_c")}) {
    EXPECT_EQ(first_host(list, "LIST"), host);
  }
}

TEST(FirstHost, RefusesWhatIsNoList) {
  for (const std::string list :
       {"", ",a", "node[", "node[]", "node[3", "node[3-]", "node[-3]",
        "node[a]", "node[3,]", "node[[3]]", "node]", "-flag", ".hidden", "a b",
        "a;b", "$(x)", "a\nb", "a/b"}) {
    EXPECT_THROW(first_host(list, "LIST"), InvalidArgument) << list;
  }
  EXPECT_THROW(first_host(std::string(254, 'a'), "LIST"), InvalidArgument);
  EXPECT_THROW(first_host("n[" + std::string(1 << 20, '1') + "]", "LIST"),
               InvalidArgument);
}

TEST(TasksOfNode, ReadsRepeatedCounts) {
  const int expected[] = {2, 2, 2, 1, 4};
  for (int node = 0; node < 5; ++node) {
    int total = 0;
    EXPECT_EQ(tasks_of_node("2(x3),1,4", "LIST", node, total), expected[node]);
    EXPECT_EQ(total, 11);
  }
}

TEST(TasksOfNode, RefusesWhatIsNoList) {
  int total = 0;
  for (const char* list :
       {"", "0", "-1", "a", "2(", "2(x", "2(x)", "2(x3", "2(3)", "2(x0)", "2,",
        "2 ", "99999999999", "1048576(x1048576)", "1048577"}) {
    EXPECT_THROW(tasks_of_node(list, "LIST", 0, total), InvalidArgument)
        << list;
  }
  EXPECT_THROW(tasks_of_node("2(x3)", "LIST", 3, total), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
