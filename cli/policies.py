"""`cadenza policies`: its commands and their flags. What they do is imported inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from cadenza.cli.errors import UsageError
from cadenza.cli.options import ChoiceOptions, PolicyOptions, ServerOptions

policies = App(name="policies", help="List, explain, check and change scheduling policies.")


@policies.command(name="list")
def list_policies(
    *,
    json: Annotated[bool, Parameter(negative=())] = False,
    server: str | None = None,
    admin_api_key: str | None = None,
    flags: PolicyOptions | None = None,
) -> int:
    """List all policies, and which would decide under the same flags of `cadenza serve`.

    Parameters
    ----------
    json
        Write JSON, for programs.
    server
        HTTP address of a running service: list its policies, which of them decide, and how they
        fare.
    admin_api_key
        The key that it was started with; default: that of CADENZA_ADMIN_API_KEY, if it is set.
    """
    if server is not None:
        if flags is not None and flags.model_fields_set:
            raise UsageError("--server lists what a running service does; other flags do not apply")
        from cadenza.cli.live_policies import list_live

        return list_live(ServerOptions(server=server, admin_api_key=admin_api_key), as_json=json)
    from cadenza.cli.policy_reports import report_all

    return report_all(flags or PolicyOptions(), as_json=json)


@policies.command
def show(name: str, /, *, plugins_dir: Path | None = None) -> int:
    """Explain one policy: what it does, its options with their defaults, its hooks.

    Parameters
    ----------
    name
        The policy's name.
    plugins_dir
        A folder whose Python files hold policies.
    """
    from cadenza.cli.policy_reports import explain

    return explain(name, plugins_dir)


@policies.command
def hooks(name: str | None = None, /) -> int:
    """List the hooks that a policy may have, or explain one: when it is called, what it answers.

    Parameters
    ----------
    name
        The hook, such as order_admissions, or its decision, such as order.
    """
    from cadenza.cli.hook_pages import explain_hook, list_hooks

    return list_hooks() if name is None else explain_hook(name)


@policies.command
def check(target: str, /) -> int:
    """Import a plugin, try its policies, and say what is wrong with it; status 1 if anything is.

    Each hook is called once on a small made-up view, as before a policy decides in a service.

    Parameters
    ----------
    target
        A Python file, a folder of them, or an installed distribution, entry point or module.
    """
    from cadenza.cli.plugin_check import check_plugin

    return check_plugin(target)


@policies.command
def use(
    preset: str | None = None,
    /,
    *,
    choice: ChoiceOptions | None = None,
    server: ServerOptions | None = None,
) -> int:
    """Let other policies decide in a running service; requests in flight go on.

    What is not chosen is decided by the default; the preset fcfs is all defaults.

    Parameters
    ----------
    preset
        A preset to begin with, such as fair-share.
    """
    from cadenza.cli.live_policies import use_profile

    choice = choice or ChoiceOptions()
    if preset is None and choice == ChoiceOptions():
        raise UsageError(
            "say which policies shall decide: a preset, --policy or --policy-file; "
            "`cadenza policies use fcfs` goes back to the defaults"
        )
    return use_profile(server or ServerOptions(), preset, choice)


@policies.command
def release(name: str, /, *, server: ServerOptions | None = None) -> int:
    """Let a running service ask a quarantined policy again.

    Parameters
    ----------
    name
        The policy's name.
    """
    from cadenza.cli.live_policies import release_policy

    return release_policy(server or ServerOptions(), name)


@policies.command
def shadow(
    preset: str | None = None,
    /,
    *,
    off: Annotated[bool, Parameter(negative=())] = False,
    choice: ChoiceOptions | None = None,
    server: ServerOptions | None = None,
) -> int:
    """Let a running service ask other policies as well, and compare; alone: what it has found.

    Parameters
    ----------
    preset
        A preset to begin with, such as fair-share.
    off
        Ask them no more.
    """
    from cadenza.cli.live_policies import drop_shadow, show_shadow, use_shadow

    server, choice = server or ServerOptions(), choice or ChoiceOptions()
    is_chosen = preset is not None or choice != ChoiceOptions()
    if off and is_chosen:
        raise UsageError("--off takes the shadow away; it goes without a choice of policies")
    if off:
        return drop_shadow(server)
    return use_shadow(server, preset, choice) if is_chosen else show_shadow(server)
