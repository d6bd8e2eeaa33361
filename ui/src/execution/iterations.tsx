/** The iterations of loops: index, item, status, attempts, duration, error; opened with the task that ended them. */
import { useMemo, useState } from "preact/hooks";
import { Button, Status } from "../common/components";
import { useQueryValue } from "../common/router";
import { duration } from "../common/times";
import { VirtualTable, type Column } from "../common/virtual";
import { AttemptView, stateOf } from "./attempt";
import { inLine, useItems } from "./items";
import { JsonTree } from "./json";
import { ERROR, ITERATION, TASK, type Log } from "./log";

interface Props {
  id: string;
  log: Log;
  version: number;
  seq: number;
  step: string | null;
  /** Starts a rerun of the failed iterations; null if it is not permitted. */
  rerunFailed: (() => void) | null;
}

export function Iterations({ id, log, version, seq, step, rerunFailed }: Props) {
  const [text, setText] = useQueryValue("find");
  const [only, setOnly] = useQueryValue("only");
  const [open, setOpen] = useQueryValue("iteration");
  const [span, setSpan] = useState<number | null>(null);
  const { spans } = log;
  const itemOf = useItems(id, log, version, step);
  const tasks = useMemo(() => tasksByIteration(log), [log, version]);
  const counts = useMemo(() => {
    let failed = 0;
    let all = 0;
    for (let at = 0; at < spans.length; at++) {
      if (spans.kind.data[at] !== ITERATION || (step && log.steps.texts[spans.step.data[at]] !== step)) continue;
      all++;
      if (spans.state.data[at] === ERROR) failed++;
    }
    return { all, failed };
  }, [log, version, step]);
  const several = useMemo(() => {
    const steps = new Set<number>();
    for (let at = 0; at < spans.length; at++) if (spans.kind.data[at] === ITERATION) steps.add(spans.step.data[at]);
    return steps.size > 1 && !step;
  }, [log, version, step]);
  const rows = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    const found: number[] = [];
    for (let at = 0; at < spans.length; at++) {
      if (spans.kind.data[at] !== ITERATION || spans.start.data[at] > seq) continue;
      if (step && log.steps.texts[spans.step.data[at]] !== step) continue;
      if (only === "failed" && spans.state.data[at] !== ERROR) continue;
      if (wanted) {
        const path = log.pathOf(spans.start.data[at])!;
        const words = `#${path} ${log.more.get(spans.end.data[at])?.error?.join(" ") ?? ""} ${inLine(itemOf(spans.run.data[at], path))}`;
        if (!words.toLowerCase().includes(wanted)) continue;
      }
      found.push(at);
    }
    return found;
  }, [log, version, seq, step, text, only]);
  const pathOf = (at: number) => log.pathOf(spans.start.data[at])!;
  const took = (at: number) => (spans.end.data[at] ? log.atOf(spans.end.data[at]) - log.spanStart(at) : null);
  const order = (path: string) => path.split(".").reduce((sum, part) => sum * 1_000_000 + Number(part), 0);
  const columns: Column<number>[] = [
    ...(several ? [{ key: "step", label: "Step", width: "minmax(90px, 0.6fr)", render: (at: number) => log.steps.texts[spans.step.data[at]], sort: (at: number) => log.steps.texts[spans.step.data[at]] }] : []),
    { key: "index", label: "Index", width: "70px", right: true, render: pathOf, sort: (at) => order(pathOf(at)) },
    { key: "item", label: "Item", width: "minmax(140px, 1.4fr)", render: (at) => <span class="mono">{inLine(itemOf(spans.run.data[at], pathOf(at)))}</span> },
    { key: "status", label: "Status", width: "96px", render: (at) => <Status status={stateOf(spans.state.data[at], spans.end.data[at])} />, sort: (at) => stateOf(spans.state.data[at], spans.end.data[at]) },
    { key: "attempts", label: "Attempts", width: "74px", right: true, render: (at) => tasks.get(keyOf(log, at))?.attempts ?? "", sort: (at) => tasks.get(keyOf(log, at))?.attempts ?? 0 },
    { key: "took", label: "Duration", width: "84px", right: true, render: (at) => (took(at) === null ? "" : duration(took(at)!)), sort: took },
    { key: "error", label: "Error", width: "minmax(140px, 2fr)", render: (at) => <span class="wrong">{log.more.get(spans.end.data[at])?.error?.[1]}</span>, sort: (at) => log.more.get(spans.end.data[at])?.error?.[1] ?? null },
  ];
  const opened = open !== "" ? (rows.find((at) => pathOf(at) === open) ?? null) : null;
  const shown = span ?? (opened !== null ? (tasks.get(keyOf(log, opened))?.last ?? null) : null);
  return (
    <div class="iterations">
      <div class="ev-tools">
        <input type="search" placeholder="Search index, item, error" aria-label="Search iterations" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <label class="check">
          <input type="checkbox" checked={only === "failed"} onChange={(event) => setOnly(event.currentTarget.checked ? "failed" : "")} /> failed only
        </label>
        <span class="quiet number" role="status">
          {rows.length.toLocaleString()} of {counts.all.toLocaleString()}
          {counts.failed > 0 && <span class="wrong">, {counts.failed.toLocaleString()} failed</span>}
        </span>
        <span class="grow" />
        {rerunFailed && counts.failed > 0 && (
          <Button class="small" onClick={rerunFailed}>
            Rerun failed only
          </Button>
        )}
      </div>
      <VirtualTable
        label="Iterations"
        rows={rows}
        columns={columns}
        idOf={(at) => at}
        open={opened}
        onOpen={(at) => {
          setSpan(null);
          setOpen(at === null ? "" : pathOf(at));
        }}
        empty="No iterations"
        width={760}
      />
      {opened !== null && (
        <div class="iteration-open">
          <h3>Item {open}</h3>
          <JsonTree value={itemOf(spans.run.data[opened], pathOf(opened)) ?? null} open={2} />
          {shown !== null && <AttemptView key={shown} id={id} log={log} version={version} span={shown} onSpan={setSpan} />}
        </div>
      )}
    </div>
  );
}

const keyOf = (log: Log, at: number) => log.spans.run.data[at] * 0x1000000 + log.spans.path.data[at];

/** For each iteration: the largest number of attempts of a task, and the task that ended last. */
function tasksByIteration(log: Log): Map<number, { attempts: number; last: number }> {
  const found = new Map<number, { attempts: number; last: number }>();
  const { kind, attempt } = log.spans;
  for (let at = 0; at < log.spans.length; at++) {
    if (kind.data[at] !== TASK) continue;
    const key = keyOf(log, at);
    const known = found.get(key);
    if (known) {
      known.attempts = Math.max(known.attempts, attempt.data[at]);
      known.last = at;
    } else found.set(key, { attempts: attempt.data[at], last: at });
  }
  return found;
}
