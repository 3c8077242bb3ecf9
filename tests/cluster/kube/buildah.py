"""buildah, and skopeo to copy out of it, with a store of their own below the cache folder."""

from collections.abc import Mapping
from pathlib import Path

from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.shell import run, run_visibly, succeeds


class Buildah:
    """The programs and images of one store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._argv = [
            "buildah",
            f"--root={folder / 'store'}",
            f"--runroot={folder / 'run'}",
            "--storage-driver=overlay",
        ]

    def has_image(self, name: str) -> bool:
        return self._folder.exists() and succeeds([*self._argv, "inspect", "--type", "image", name])

    def image_id(self, name: str) -> str:
        """What names an image's content: the digest of its config."""
        return run([*self._argv, "inspect", "--type", "image", "--format", "{{.FromImageID}}", name]).strip()

    def commit_root(self, root: Path, name: str) -> None:
        """Make an image of one layer out of a root file system's tar."""
        container = run([*self._argv, "from", "scratch"]).strip()
        try:
            run([*self._argv, "add", container, str(root), "/"])
            run([*self._argv, "config", "--cmd", "bash", "--env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", container])
            run([*self._argv, "commit", container, name])
        finally:
            succeeds([*self._argv, "rm", container])

    def build(self, context: Path, target: str, name: str, certificates: Path | None, log: Path) -> None:
        """Build one target of the context's Dockerfile, layer by layer, from images that are here already.

        Args:
            certificates: certificate authorities of this host, for downloads while building.
        """
        trust: Mapping[str, str] = {}
        volumes = []
        if certificates is not None:
            volumes = [f"--volume={certificates}:/run/host-certificates.crt:ro"]
            trust = {"SSL_CERT_FILE": "/run/host-certificates.crt"}
        run_visibly(
            [
                *self._argv,
                "bud",
                "--layers",
                "--pull=never",
                "--isolation=chroot",
                "--network=host",
                *volumes,
                *(f"--build-arg={key}={value}" for key, value in trust.items()),
                f"--target={target}",
                f"--tag={name}",
                str(context),
            ],
            log=log,
        )

    def prune(self) -> None:
        """Remove layers that no image needs any more."""
        succeeds([*self._argv, "rmi", "--prune"])

    def copy_to_layout(self, name: str, layout: Path) -> None:
        """Write an image into an OCI layout folder, uncompressed; layers that are there are not written again.

        Raises:
            ClusterError: there is no such image.
        """
        if not self.has_image(name):
            raise ClusterError(f"{name} is not built; run `cluster.py build-images` first")
        # skopeo rather than `buildah push`: that one always compresses, and then cannot tell what is already there.
        store = f"containers-storage:[overlay@{self._folder / 'store'}+{self._folder / 'run'}]{name}"
        options = ["--insecure-policy", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers"]
        run(["skopeo", *options, store, f"oci:{layout}:{name}"])
