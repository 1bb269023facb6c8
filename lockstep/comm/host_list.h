#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// The first host of a list as Slurm writes it: "node03" of
/// "node[03-05,9],login". Throws InvalidArgument naming `variable`, which it is
/// of, if it is no such list.
std::string first_host(std::string_view list, std::string_view variable);

/// How many ranks node `node` has, of a list as Slurm writes it: "2(x3),1" is
/// 2, 2, 2, 1. `total` gets the ranks of all. Throws InvalidArgument naming
/// `variable` if it is no such list or there is no such node.
int tasks_of_node(std::string_view list, std::string_view variable, int node,
                  int& total);

}  // namespace lockstep
