#pragma once

namespace lockstep::sim {

/// Registers the backend "simccl" for simulated devices. It has the semantics
/// of NCCL as ProcessGroupNCCL uses it:
///
/// - A call is a kernel. An asynchronous one runs in the communicator's own
///   stream, after the work of the caller's stream. A synchronous one runs in
///   the caller's stream. A communicator runs one call at a time.
/// - Work::wait() makes the caller's stream wait, not the host, unless it has a
///   timeout or is that of a barrier. An asynchronous call holds its tensors
///   until wait(). There is no record_stream().
/// - Tensors are on one device, which no other rank of the process uses, and
///   have no gaps.
/// - A reduction goes from the last rank to the first, which is another order
///   than Lockstep's tree.
/// - A rank that makes another call, or none within the timeout, ends the call
///   on every rank. The error appears at the next wait or call.
///
/// The ranks move bytes over Lockstep's backend shm, so they are on one host.
/// The first call in a process counts. It has to come after install().
void install_collectives();

}  // namespace lockstep::sim
