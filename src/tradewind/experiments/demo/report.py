"""Reports of the demo's results: JSON for programs, and one self-contained HTML file with SVG figures for readers."""

from __future__ import annotations

import base64
import html
from typing import Any

from tradewind.experiments.demo.run import CHUNK_BYTES, GRADIENT_BYTES, DemoResult, SchemeRun, cores
from tradewind.planning.cost import cost, link_seconds
from tradewind.units import format_count, format_duration, format_rate, format_size

PARAMETERS = GRADIENT_BYTES // 4

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 1000px; margin: 2.5em auto; padding: 0 1.5em }
h1 { font-size: 1.6em; margin-bottom: .2em } h2 { font-size: 1.15em; margin: 2em 0 .4em }
p.lead { font-size: 1.15em } p.quiet, td.quiet, footer { color: #5f6c7b }
table { border-collapse: collapse; width: 100%; margin: 1em 0 } th { font-weight: 600; text-align: right }
th, td { padding: .35em .7em; text-align: right; border-bottom: 1px solid #e4e8ec } th:first-child, td:first-child { text-align: left }
tr.ours td { font-weight: 600; color: #2066a8 } img { width: 100%; display: block; margin: .5em 0 }
footer { margin-top: 2.5em; font-size: .9em; border-top: 1px solid #e4e8ec; padding-top: 1em }
"""  # noqa: E501 - a style sheet


def as_json(result: DemoResult) -> dict[str, Any]:
    """All measurements as a JSON-compatible object."""
    slowest_s = max(run.step_s for run in result.runs)
    return {
        "network": result.network.name,
        "sites": list(result.network.names),
        "scale": result.scale,
        "framework": result.framework,
        "parameters": PARAMETERS,
        "bytes": GRADIENT_BYTES,
        "steps": result.steps,
        "seed": result.seed,
        "limit_seconds": result.ours.scheme.prediction.bound_seconds,
        "schemes": [
            {
                "name": run.scheme.name,
                "planner": run.scheme.plan.planner,
                "trees": len(run.scheme.plan.shards),
                "seconds_per_step": run.step_s,
                "predicted_seconds": run.scheme.prediction.seconds,
                "limit_share": run.limit_share,
                "speed_up": slowest_s / run.step_s,
                "compute_seconds": run.compute_s,
                "busy_cores": run.busy_cores,
                "step_ends_seconds": list(run.step_ends_s),
                "losses": list(run.losses),
                "final_loss": run.final_loss,
                "accuracy": run.sites[0].accuracy,
                "ranks_equal": run.ranks_equal,
            }
            for run in result.runs
        ],
        "loss_difference": result.loss_difference,
        "same_losses": result.same_losses,
        "cores": cores(),
        "seconds": result.seconds,
    }


def scale_sentence(result: DemoResult) -> str:
    """A sentence about how the emulated links differ from the network's, and which model size they correspond to."""
    rates = result.network.bandwidth_bps[result.network.bandwidth_bps > 0]
    span = f"{format_rate(float(rates.min()))} to {format_rate(float(rates.max()))}"
    if result.scale == 1.0:
        return f"Links run at the network's own rates, {span}, with its own latencies."
    return (
        f"Links run at 1/{1 / result.scale:.3g} of their rates ({span}) with their own latencies, so "
        f"{PARAMETERS / 1e6:.1f} million parameters take as long as {PARAMETERS / result.scale / 1e6:.3g} million "
        "would on the real ones."
    )


def headline(result: DemoResult) -> str:
    """A sentence that compares Tradewind's plan with the others."""
    others = [run for run in result.runs if run is not result.ours]
    against = " and ".join(
        f"{run.step_s / result.ours.step_s:.1f} times as fast as {run.scheme.name}" for run in others
    )
    return f"Tradewind's plan trained {against}, at {result.ours.limit_share:.0%} of the network's limit."


def losses_sentence(result: DemoResult) -> str:
    """A sentence about whether all schemes had the same losses."""
    agree = "The same losses over all schemes" if result.same_losses else "LOSSES DIFFER between schemes"
    return (
        f"{agree} (largest difference {result.loss_difference:.1g} of a step's loss, from the order of float32 sums); "
        f"after {format_count(result.steps, 'step')} all {len(result.network)} sites have bit-identical parameters."
    )


def compute_sentence(result: DemoResult) -> str:
    """A sentence about the compute share of a step, and how busy the machine was."""
    ours = result.ours
    return (
        f"Computing takes {format_duration(ours.compute_s)} of a step: this model is small, so nearly all is "
        f"synchronising. During Tradewind's steps the sites kept {ours.busy_cores:.1f} of {cores()} cores busy."
    )


def as_html(result: DemoResult, command: str) -> bytes:
    """The results as one HTML page that refers to no other file."""
    from tradewind.figures import render
    from tradewind.figures.demo import SchemeView, losses_figure, maps_figure, steps_figure

    views = [
        SchemeView(
            run.scheme.name,
            run.scheme.plan,
            run.step_s,
            run.compute_s,
            run.step_ends_s,
            run.losses,
            _busy_share(result, run),
        )
        for run in result.runs
    ]
    limit_s = result.ours.scheme.prediction.bound_seconds
    pictures = [
        _picture(render(figure, ".svg"), text)
        for figure, text in (
            (steps_figure(views, limit_s), "Seconds a step of each scheme, beside the limit"),
            (losses_figure(views), "Loss against time, one curve for each scheme"),
            (maps_figure(result.network, views), "How busy each scheme keeps the links"),
        )
    ]
    steps, losses, maps = pictures
    title = f"One model, trained across {len(result.network)} sites of {result.network.name}"
    body = f"""<h1>{html.escape(title)}</h1>
<p class="lead">{html.escape(headline(result))}</p>
<p>{html.escape(losses_sentence(result))}</p>
<p>The sites: {html.escape(", ".join(result.network.names))}. {html.escape(scale_sentence(result))}</p>
{_table(result)}
<h2>How long a step takes</h2>{steps}
<p class="quiet">{html.escape(compute_sentence(result))}</p>
<h2>What has been learnt by when</h2>{losses}
<h2>Where the bytes go</h2>{maps}
<p class="quiet">{html.escape(_why(result))}</p>
<footer>{html.escape(_footer(result))}<br><code>{html.escape(command)}</code></footer>"""
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>{body}</body></html>\n"
    )
    return page.encode()


def _busy_share(result: DemoResult, run: SchemeRun) -> float:
    """The mean over all links of the fraction of the transfer time in which a link is busy."""
    spent = cost(run.scheme.plan, result.network)
    busy_s = link_seconds(spent.link_bytes, result.network.bandwidth_bps)
    return float(busy_s.sum() / result.network.link_count / spent.transfer_seconds)


def _picture(svg: bytes, text: str) -> str:
    return f'<img alt="{html.escape(text)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'


def _table(result: DemoResult) -> str:
    slowest_s = max(run.step_s for run in result.runs)
    rows = []
    for run in result.runs:
        cells = (
            run.scheme.name,
            format_duration(run.step_s),
            format_duration(run.scheme.prediction.seconds),
            f"{slowest_s / run.step_s:.1f}x",
            f"{run.limit_share:.0%}",
            f"{run.final_loss:.5f}",
            f"{run.sites[0].accuracy:.1%}",
        )
        mark = ' class="ours"' if run is result.ours else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    heads = ("scheme", "a step", "predicted", "speed-up", "of the limit", "final loss", "test accuracy")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _why(result: DemoResult) -> str:
    """The planner's reason for this plan (with finer chunks), and the prediction with the chunks that were used."""
    reason = result.ours.scheme.plan.reason
    seconds = format_duration(result.ours.scheme.prediction.seconds)
    coarse = f"With chunks of at least {CHUNK_BYTES // 1024} KiB, for this machine's sake, {seconds} are predicted."
    return f"Why this plan: {reason} {coarse}" if reason else coarse


def _footer(result: DemoResult) -> str:
    return (
        f"{len(result.network)} processes on one machine ({cores()} cores), {result.framework}; a model "
        f"of {PARAMETERS:,} parameters ({format_size(GRADIENT_BYTES)} a step) on scikit-learn's digits, seed "
        f"{result.seed}. Step times are medians of {result.steps}. Data connections are paced and delayed as the "
        f"network's links; control messages are not. All of it took {format_duration(result.seconds)}."
    )
