"""The commands of `cluster.py` and their arguments."""

import argparse
import dataclasses
import json
import shlex
import sys

from tests.cluster.kube import image_build, image_load, lifecycle
from tests.cluster.kube.console import answer
from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.paths import use_cache_for_temporary_files
from tests.cluster.kube.spec import DEFAULT_CONTROL_PLANE_NAME, DEFAULT_NAME, MAX_NODES, ClusterSpec

_DESCRIPTION = "A real Kubernetes on this machine; tests/cluster/README.md says more."


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.name is None:
        arguments.name = DEFAULT_CONTROL_PLANE_NAME if arguments.control_plane_only else DEFAULT_NAME
    try:
        use_cache_for_temporary_files()
        arguments.command(arguments)
    except ClusterError as error:
        sys.stderr.write(f"cluster: error: {error}\n")
        return 1
    except PermissionError as error:
        sys.stderr.write(f"cluster: error: {error}; run as the user who started the cluster, or as root\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("cluster: interrupted; the same command goes on from here\n")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", help=f"the cluster's name (default {DEFAULT_NAME})")
    common.add_argument(
        "--control-plane-only",
        action="store_true",
        help=f"etcd and the control plane alone, on loopback, without root (default name {DEFAULT_CONTROL_PLANE_NAME})",
    )
    common.add_argument("--json", action="store_true", help="give the result as one JSON document")
    parser = argparse.ArgumentParser(prog="cluster.py", description=_DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", parents=[common], help="start it; on a running one nothing happens")
    up.add_argument("--nodes", type=int, default=1, help=f"1 to {MAX_NODES}; more than it has adds nodes (default 1)")
    up.add_argument("--slot", type=int, help="0 to 3: which subnets and bridge to use (default: the one it has, or 0)")
    up.set_defaults(command=_up)
    down = commands.add_parser("down", parents=[common], help="stop it and clean up; loaded images stay on disk")
    down.add_argument("--purge", action="store_true", help="remove the nodes' loaded images too")
    down.set_defaults(command=_down)
    status = commands.add_parser("status", parents=[common], help="say how it is; exit status 1 unless all is well")
    status.set_defaults(command=_status)
    env = commands.add_parser("env", parents=[common], help="print the lines that point a shell at it")
    env.set_defaults(command=_env)
    build = commands.add_parser("build-images", parents=[common], help="build the server's and operator's images")
    build.add_argument("--only", choices=image_build.TARGETS, help="one of the two")
    build.set_defaults(command=_build_images)
    load = commands.add_parser("load-images", parents=[common], help="put the built images on every node")
    load.add_argument("--only", choices=image_build.TARGETS, help="one of the two")
    load.set_defaults(command=_load_images)
    return parser


def _up(arguments: argparse.Namespace) -> None:
    nodes = 0 if arguments.control_plane_only else arguments.nodes
    if nodes == 0 and not arguments.control_plane_only:
        raise ClusterError("--nodes 0: use --control-plane-only")
    slot = arguments.slot if arguments.slot is not None else lifecycle.slot_of(arguments.name)
    spec = lifecycle.up(ClusterSpec(arguments.name, slot=slot or 0, nodes=nodes))
    kubeconfig = str(lifecycle.cluster_paths(spec.name).kubeconfig)
    path = [str(folder) for folder in lifecycle.tool_folders(spec.control_plane_only).folders]
    result = {"name": spec.name, "nodes": spec.nodes, "kubeconfig": kubeconfig, "path": path}
    answer(json.dumps(result) if arguments.json else kubeconfig)


def _down(arguments: argparse.Namespace) -> None:
    lifecycle.down(arguments.name, purge=arguments.purge)


def _status(arguments: argparse.Namespace) -> None:
    status = lifecycle.status(arguments.name)
    if arguments.json:
        facts = {
            "name": arguments.name,
            "complete": status.is_complete,
            "running": status.running,
            "ended": status.ended,
            "api_ready": status.api_ready,
            "ready_nodes": status.ready_nodes,
        }
        answer(json.dumps(facts))
    elif status.spec is not None:
        answer(f"cluster {arguments.name!r}: {'complete' if status.is_complete else 'incomplete'}")
        answer(f"  API server: {status.spec.api_url} ({'ready' if status.api_ready else 'not ready'})")
        answer(f"  ready nodes: {', '.join(status.ready_nodes) or 'none'} (of {status.spec.nodes})")
        answer(f"  running: {', '.join(status.running) or 'nothing'}")
        answer(f"  ended: {', '.join(status.ended) or 'nothing'}")
    if status.spec is None:
        raise ClusterError(f"there is no cluster {arguments.name!r}; start it with `up`")
    if not status.is_complete:
        raise ClusterError(f"cluster {arguments.name!r} is incomplete; `up` starts what is missing")


def _env(arguments: argparse.Namespace) -> None:
    paths = lifecycle.cluster_paths(arguments.name)
    if not paths.kubeconfig.exists():
        raise ClusterError(f"there is no cluster {arguments.name!r}; start it with `up`")
    folders = ":".join(str(folder) for folder in lifecycle.tool_folders(arguments.control_plane_only).folders)
    answer(f"export KUBECONFIG={shlex.quote(str(paths.kubeconfig))}")
    answer(f'export PATH={shlex.quote(folders)}:"$PATH"')


def _build_images(arguments: argparse.Namespace) -> None:
    built = image_build.build([arguments.only] if arguments.only else image_build.TARGETS)
    if arguments.json:
        answer(json.dumps([dataclasses.asdict(image) for image in built]))
    else:
        for image in built:
            answer(image.name)


def _load_images(arguments: argparse.Namespace) -> None:
    spec = lifecycle.status(arguments.name).spec
    if spec is None or spec.control_plane_only:
        raise ClusterError(f"there is no cluster {arguments.name!r} with nodes; start it with `up`")
    for target in [arguments.only] if arguments.only else image_build.TARGETS:
        image_load.load(spec, lifecycle.cluster_paths(spec.name), target)
        answer(image_build.image_name(target))
