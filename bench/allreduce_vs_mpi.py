#!/usr/bin/env python3
"""Compares all-reduce over shared memory with MPI's on this host.

    python3 bench/allreduce_vs_mpi.py --lockstep build/release/bin/lockstep

builds bench/mpi_allreduce.cc with each MPI that is installed. It runs that
program and `lockstep bench allreduce --backend shm` in turn, several rounds of
each, so that disturbances of the host affect all of them. It prints the median
over the rounds in microseconds, and how many times as long MPI took as Lockstep
in the same round (the median of these ratios). Above 1, Lockstep is faster.

"resident" is memory of ProcessGroup::shared_memory, "private" is the process's
own memory. MPI's memory is private. Debian packages: openmpi-bin
libopenmpi-dev mpich libmpich-dev.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      'mpi_allreduce.cc')
MPIS = {
    'Open MPI': {
        'compiler': 'mpicxx.openmpi',
        'run': ['mpirun.openmpi', '--allow-run-as-root', '--oversubscribe'],
        'packages': 'openmpi-bin libopenmpi-dev',
    },
    'MPICH': {
        'compiler': 'mpicxx.mpich',
        'run': ['mpirun.mpich'],
        'packages': 'mpich libmpich-dev',
    },
}
OURS = {'shm resident': 'resident', 'shm': 'private'}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lockstep', default='build/release/bin/lockstep',
                        metavar='PATH', help='the program (default: '
                        '%(default)s)')
    parser.add_argument('--nproc', type=int, nargs='+', default=[2, 4],
                        metavar='N', help='numbers of ranks (default: 2 4)')
    parser.add_argument('--sizes', default='4K:256M', metavar='A:B',
                        help='bytes of a message (default: %(default)s)')
    parser.add_argument('--factor', type=int, default=4, metavar='F',
                        help='each size over the one before (default: 4)')
    parser.add_argument('--rounds', type=int, default=5, metavar='R',
                        help='runs of each program (default: %(default)s)')
    parser.add_argument('--calls', type=int, default=9, metavar='C',
                        help='timed calls of each size in a run (default: '
                        '%(default)s)')
    return parser.parse_args()


def progress(text):
    print(text, file=sys.stderr, flush=True)


def run(command):
    """Returns the output of `command`. Ends this program if it failed."""
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f'{" ".join(command)} ended with {result.returncode}:\n'
                 f'{result.stdout}{result.stderr}')
    return result.stdout


def build_mpis(folder):
    """Returns a command for each installed MPI. Run it with -n."""
    commands = {}
    for name, mpi in MPIS.items():
        missing = [program for program in (mpi['compiler'], mpi['run'][0])
                   if shutil.which(program) is None]
        if missing:
            progress(f'{name} is left out: {missing[0]} was not found (apt-get '
                     f'install {mpi["packages"]})')
            continue
        program = os.path.join(folder, mpi['compiler'])
        run([mpi['compiler'], '-O3', '-std=c++20', SOURCE, '-o', program])
        commands[name] = (mpi['run'], program)
    return commands


def time_lockstep(arguments, nproc, folder):
    """Returns microseconds by size, then by kind of memory."""
    path = os.path.join(folder, 'lockstep.json')
    run([arguments.lockstep, 'bench', 'allreduce', '--backend', 'shm',
         '--nproc', str(nproc), '--sizes', arguments.sizes,
         '--factor', str(arguments.factor), '--iters', str(arguments.calls),
         '--check', 'off', '--json', path])
    with open(path) as file:
        report = json.load(file)
    return {size['bytes']: {OURS[figure['backend']]: figure['time_us']
                            for figure in size['backends']}
            for size in report['sizes']}


def time_mpi(command, nproc, sizes, calls):
    launcher, program = command
    lines = run([*launcher, '-n', str(nproc), program,
                 ','.join(map(str, sizes)), str(calls)])
    rows = (line.split() for line in lines.splitlines())
    return {int(size): float(time) for size, time in rows}


def name_of(size):
    for unit, bytes_of_unit in (('MiB', 1 << 20), ('KiB', 1 << 10)):
        if size >= bytes_of_unit and size % bytes_of_unit == 0:
            return f'{size // bytes_of_unit} {unit}'
    return f'{size} B'


def print_table(nproc, times, mpis):
    """Prints `times`: for each size and kind, the microseconds of all rounds in
    order.
    """
    ours = list(OURS.values())
    ratios = [(mpi, way) for mpi in mpis for way in ours]
    heads = ([f'size, {nproc} ranks', *ours, *mpis] +
             [f'{mpi} / {way}' for mpi, way in ratios])
    print('| ' + ' | '.join(heads) + ' |')
    print('|' + '---:|' * len(heads))
    for size, by_way in times.items():
        cells = [name_of(size)]
        cells += [f'{statistics.median(by_way[way]):,.1f}'
                  for way in (*ours, *mpis)]
        cells += [f'{statistics.median(m / o for m, o in zip(by_way[mpi], by_way[way])):.2f}'
                  for mpi, way in ratios]
        print('| ' + ' | '.join(cells) + ' |')
    print(flush=True)


def main():
    arguments = parse_arguments()
    if shutil.which(arguments.lockstep) is None:
        sys.exit(f'{arguments.lockstep} is no program: build it (make build) '
                 'or name it with --lockstep')
    with tempfile.TemporaryDirectory() as folder:
        mpis = build_mpis(folder)
        for nproc in arguments.nproc:
            times = {}
            for number in range(1, arguments.rounds + 1):
                progress(f'{nproc} ranks, round {number} of '
                         f'{arguments.rounds}')
                ours = time_lockstep(arguments, nproc, folder)
                for size, by_way in ours.items():
                    for way, time in by_way.items():
                        times.setdefault(size, {}).setdefault(
                            way, []).append(time)
                for name, command in mpis.items():
                    mpi_times = time_mpi(command, nproc, ours, arguments.calls)
                    for size, time in mpi_times.items():
                        times[size].setdefault(name, []).append(time)
            print_table(nproc, times, mpis)


if __name__ == '__main__':
    main()
