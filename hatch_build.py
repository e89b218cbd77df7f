"""The build of wheels and editable installations: compiles the kernels (`tradewind.native`) where a C compiler exists.

Without one the wheel contains Python alone, and works everywhere.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg,misc,unused-ignore]
    """Adds the compiled library to a wheel, and the platform to the wheel's name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's interface
        """Compile into the source tree, from which wheels and editable installations take it."""
        folder = Path(self.root) / "src" / "tradewind" / "native"
        spec = importlib.util.spec_from_file_location("tradewind_native_build", folder / "build.py")
        assert spec is not None and spec.loader is not None
        builder = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(builder)
        (folder / builder.LIBRARY).unlink(missing_ok=True)  # another platform's, or an older one
        try:
            made = builder.build(folder)
        except builder.CannotBuild as error:
            self.app.display_warning(f"tradewind: built without kernels in C, since {error}; it uses numpy instead")
            return
        build_data["artifacts"].append(made.relative_to(self.root).as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
