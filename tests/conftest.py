"""What holds for every test: the environment, reproducible examples, and ranks in lockstep."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

LAUNCHER_ENVIRONMENT = {
    # More ranks than cores, and root (containers): Open MPI refuses both unless told.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Ranks share the cores; a BLAS that starts a thread a core in each only gets in the way.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}

# Time never decides a test, and a run can be repeated: no deadline, no random seed. Ranks under
# mpirun draw the same examples for the same reason.
hypothesis.settings.register_profile(
    "cocoll",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("cocoll")


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment, and keep the ranks of a launcher in step."""
    os.environ.update(LAUNCHER_ENVIRONMENT)
    for name in [name for name in os.environ if name.startswith("COCOLL_")]:
        del os.environ[name]
    if int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) > 1:
        from tests.helpers.lockstep import Lockstep

        config.pluginmanager.register(Lockstep(), "cocoll-lockstep")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give compiled kernels a place of their own, so that no run sees another's.

    The workers of one run share it: their temporary folders lie side by side.
    """
    base = tmp_path_factory.getbasetemp()
    shares = "PYTEST_XDIST_WORKER" in os.environ
    cache = base.parent / "shared-cache" if shares else tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COCOLL_CACHE_DIR", str(cache))
        yield
