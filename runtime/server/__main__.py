import sys

from runtime.server.cli import main

sys.exit(main())
