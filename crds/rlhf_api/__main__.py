from rlhf_api.cli import main

raise SystemExit(main())
