"""What the programs of this folder share: timing a call, and rows in the form of `mmtrain-bench --json`."""
import json
import resource
import time


def seconds_of(call, repeats, warm_up=1):
    """Sorted wall-clock seconds of `repeats` calls after `warm_up` ones."""
    for _ in range(warm_up):
        call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)


def peak_gb():
    """Highest resident size of this process so far, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def print_row(name, unit, best, median, as_json):
    if as_json:
        row = {"name": name, "figure": best, "unit": unit, "limit": None, "share": None, "best": best, "median": median}
        print(json.dumps(row), flush=True)
    else:
        print(f"{name:<52}{best:>10.2f} {unit:<9}; median {median:.2f}", flush=True)


def print_rate(name, unit, amount, seconds, as_json):
    """A row of `amount` units a call whose sorted times are `seconds`."""
    print_row(name, unit, amount / seconds[0], amount / seconds[len(seconds) // 2], as_json)
