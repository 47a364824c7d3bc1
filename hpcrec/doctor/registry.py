"""The checks, in the order in which they are made: what others rest on comes first."""

from hpcrec.doctor import allocation, folder, hosts, machine, network, plan, software, storage, tier
from hpcrec.doctor.base import Check

CHECKS = (
    Check(name="launch", measure=software.measure_launch, judge=software.judge_launch),
    Check(name="versions", measure=software.measure_versions, judge=software.judge_versions),
    Check(name="mpi", measure=software.measure_versions, judge=software.judge_mpi),
    Check(name="native kernels", measure=software.measure_native, judge=software.judge_native),
    Check(name="cuda", measure=software.measure_cuda, judge=software.judge_cuda),
    Check(name="cores", measure=machine.measure_cores, judge=machine.judge_cores),
    Check(name="memory", measure=machine.measure_memory, judge=machine.judge_memory),
    Check(name="limits", measure=machine.measure_limits, judge=machine.judge_limits),
    Check(name="clocks", measure=network.measure_clocks, judge=network.judge_clocks),
    Check(name="alltoallv", measure=network.measure_contents, judge=network.judge_contents),
    Check(name="pairs", measure=network.measure_pairs, judge=network.judge_pairs),
    Check(name="hosts", measure=hosts.measure_hosts, judge=hosts.judge_hosts),
    Check(name="folder", measure=folder.measure_folder, judge=folder.judge_folder),
    Check(name=storage.RUN, measure=storage.measure_run_disk, judge=storage.judge_run_disk),
    Check(name=storage.SCRATCH, measure=storage.measure_scratch, judge=storage.judge_scratch),
)
CONFIG_CHECKS = (
    Check(name="topology", measure=plan.measure_roles, judge=plan.judge_roles),
    Check(name="data", measure=plan.measure_data, judge=plan.judge_data),
    Check(name=storage.DATA, measure=storage.measure_data_disk, judge=storage.judge_data_disk),
    Check(name="memory of a run", measure=plan.measure_need, judge=plan.judge_need),
    Check(name=tier.ROWS, measure=tier.measure_rows_disk, judge=tier.judge_rows_disk),
)
# Last: the allocation is judged by what checkpoints take; Horovod's threads would share cores with what is measured.
LAST_CHECKS = (
    Check(name="allocation", measure=allocation.measure_allocation, judge=allocation.judge_allocation),
    Check(name="allreduce", measure=network.measure_sums, judge=network.judge_sums),
)
