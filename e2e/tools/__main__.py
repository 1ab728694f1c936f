"""`python -m e2e.tools [NAMES]`: prepares the tools of the test cluster and prints where they are."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from e2e.tools import ALL, ToolsError, key_of, prepare


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.tools", description=__doc__, epilog=f"NAMES: {', '.join(ALL)}; default all.")
    parser.add_argument("names", nargs="*", metavar="NAMES", default=[])
    parser.add_argument("--print-key", action="store_true", help="print the key of the Go-built tools and make nothing; for CI caches")
    parser.add_argument("--cache", type=Path, help="default: $RLHF_CACHE, else ~/.cache/rlhf-kube")
    parser.add_argument("--go-caches", type=Path, metavar="DIR", help="GOMODCACHE and GOCACHE in DIR (5.2 GB); default: Go's own")
    parser.add_argument("--any-disk", action="store_true", help="build although too little disk seems free")
    options = parser.parse_args()
    names = tuple(options.names) or ALL
    started = time.monotonic()
    try:
        if options.print_key:
            print(key_of(names, cache=options.cache))
            return 0
        caches = options.go_caches.resolve() if options.go_caches else None
        tools = prepare(names, cache=options.cache, go_caches=caches, any_disk=options.any_disk)
    except ToolsError as error:
        print(f"tools: {error}", file=sys.stderr)
        return 1
    for name, path in tools.binaries.items():
        print(f"{name:<24} {path}")
    print(f"{len(tools.binaries)} tools ready in {time.monotonic() - started:.1f} s, key {tools.key}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
