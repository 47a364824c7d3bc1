"""Which hosts and links are named, on bandwidths that are given: slow hosts, slow links, noise, and neither."""

import random

import pytest

from hpcrec.doctor.hosts import find_slow, judge_hosts
from tests.doctor.site import only, site_of


def network(n, slow_links=None, sends=(), receives=(), noise=0.0, seed=0):
    """GB/s between ``n`` hosts: 10, at hosts of ``sends`` or ``receives`` 1; links as given."""
    numbers = random.Random(seed)
    gbs = [[10.0 * (1 + noise * numbers.uniform(-1, 1)) for _ in range(n)] for _ in range(n)]
    for a in range(n):
        for b in range(n):
            gbs[a][b] = 1.0 if a in sends or b in receives else gbs[a][b]
        gbs[a][a] = None
    for (a, b), value in (slow_links or {}).items():
        gbs[a][b] = value
    return gbs


@pytest.mark.parametrize("hosts", [3, 4, 5, 16, 40])
def test_a_slow_host_is_named_as_the_host_and_nothing_else(hosts):
    bad = hosts - 1
    both = find_slow(network(hosts, sends=[bad], receives=[bad]))
    assert (both.hosts, both.links, both.usual_gbs) == ({bad: "sends and receives"}, (), 10.0)
    assert find_slow(network(hosts, sends=[0])).hosts == {0: "sends"}
    assert find_slow(network(hosts, receives=[1])).hosts == {1: "receives"}
    assert find_slow(network(hosts, receives=[1])).links == ()


@pytest.mark.parametrize("hosts", [3, 4, 5, 16, 40])
def test_a_slow_link_is_named_as_the_link_one_way(hosts):
    found = find_slow(network(hosts, {(0, hosts - 1): 3.0}))
    assert (found.hosts, found.links) == ({}, ((0, hosts - 1),))


def test_a_slow_host_and_a_slow_link_beside_each_other():
    found = find_slow(network(8, {(0, 1): 2.0}, sends=[5], receives=[5]))
    assert (found.hosts, found.links) == ({5: "sends and receives"}, ((0, 1),))
    found = find_slow(network(8, {(0, 5): 0.1}, sends=[5]))  # what it receives is judged by itself
    assert (found.hosts, found.links) == ({5: "sends"}, ((0, 5),))


@pytest.mark.parametrize("seed", range(20))
def test_noise_names_nobody(seed):
    found = find_slow(network(12, noise=0.3, seed=seed))
    assert (found.hosts, found.links) == ({}, ())
    found = find_slow(network(12, {(3, 4): 2.0}, sends=[7], noise=0.3, seed=seed))
    assert (found.hosts, found.links) == ({7: "sends"}, ((3, 4),))


def test_two_hosts_are_compared_by_direction_and_one_with_nothing():
    assert find_slow(network(2, {(0, 1): 4.0})).links == ((0, 1),)
    assert find_slow(network(2, {(0, 1): 6.0})).links == ()
    assert find_slow([[None]]).links == ()


def test_halves_on_two_switches_are_no_fault():
    """More links cross than not: nobody can say which are the usual ones."""
    across = {(a, b): 3.0 for a in range(6) for b in range(6) if a // 3 != b // 3}
    assert find_slow(network(6, across)).hosts == {} and find_slow(network(6, across)).links == ()


def test_what_was_not_measured_is_said():
    gbs = network(4)
    gbs[2][3] = gbs[3][2] = None
    site = site_of([f"n{i}" for i in range(4)])
    (found,) = judge_hosts([{"gbs": gbs}] * 4, site)
    assert "5 pairs of 4 hosts, 1 more not measured for lack of time" in found.found and "?" in found.found


def test_the_matrix_is_printed_for_few_hosts_and_summed_up_for_many():
    site = site_of([f"node{i:02}" for i in range(16)])
    (found,) = judge_hosts([{"gbs": network(16)}] * 16, site)
    lines = found.found.splitlines()
    assert len(lines) == 19 and lines[3].split() == ["0", "node00", "-", *["10.00"] * 15]
    site = site_of([f"node{i:02}" for i in range(17)])
    findings = list(judge_hosts([{"gbs": network(17, sends=[4], receives=[4])}] * 17, site))
    slow = only(findings, "warn")
    assert slow.found.startswith("node04 sends and receives at 1.00 GB/s at best, links between the other hosts 10.00")
    rest = only(findings, "ok")
    assert rest.what == "other hosts" and "median; least 1.00, most 10.00" in rest.found
    assert "slowest hosts by the median of their links: node04 1.00, node00 10.00" in rest.found
    assert len(rest.found.splitlines()) == 1 and len(rest.data["gbs"]) == 17
    assert rest.data["slow_hosts"] == {"node04": "sends and receives"}
    many = site_of([f"node{i:03}" for i in range(129)])
    (found,) = judge_hosts([{"gbs": network(129)}] * 129, many)
    assert found.data["gbs"] is None
