/** Every attempt of every task: sorted, searched, and opened with input, output, logs and attempts. */
import { useMemo } from "preact/hooks";
import { Status } from "../common/components";
import { useQueryValue } from "../common/router";
import { duration } from "../common/times";
import { VirtualTable, type Column } from "../common/virtual";
import { AttemptView, stateOf } from "./attempt";
import { TASK, type Log } from "./log";

export function Tasks({ id, log, version, seq, step }: { id: string; log: Log; version: number; seq: number; step: string | null }) {
  const [text, setText] = useQueryValue("find");
  const [only, setOnly] = useQueryValue("only");
  const [open, setOpen] = useQueryValue("task");
  const { spans } = log;
  const rows = useMemo(() => {
    const found: number[] = [];
    const wanted = text.trim().toLowerCase();
    for (let at = 0; at < spans.length; at++) {
      if (spans.kind.data[at] !== TASK || spans.start.data[at] > seq) continue;
      if (step && log.steps.texts[spans.step.data[at]] !== step) continue;
      if (only === "failed" && spans.state.data[at] !== 2) continue;
      if (wanted && !wordsOf(log, at).includes(wanted)) continue;
      found.push(at);
    }
    return found;
  }, [log, version, seq, step, text, only]);
  const took = (at: number) => (spans.end.data[at] ? log.atOf(spans.end.data[at]) - log.spanStart(at) : null);
  const columns: Column<number>[] = [
    { key: "step", label: "Step", width: "minmax(110px, 1fr)", render: (at) => log.steps.texts[spans.step.data[at]], sort: (at) => log.steps.texts[spans.step.data[at]] },
    { key: "iteration", label: "Iteration", width: "76px", right: true, render: (at) => log.pathOf(spans.start.data[at]) ?? "", sort: (at) => Number(log.pathOf(spans.start.data[at]) ?? -1) },
    { key: "task", label: "Task", width: "minmax(90px, 1fr)", render: (at) => log.tasks.texts[spans.task.data[at]], sort: (at) => log.tasks.texts[spans.task.data[at]] },
    { key: "attempt", label: "Attempt", width: "70px", right: true, render: (at) => spans.attempt.data[at], sort: (at) => spans.attempt.data[at] },
    { key: "status", label: "Status", width: "96px", render: (at) => <Status status={stateOf(spans.state.data[at], spans.end.data[at])} />, sort: (at) => stateOf(spans.state.data[at], spans.end.data[at]) },
    { key: "took", label: "Duration", width: "84px", right: true, render: (at) => (took(at) === null ? "" : duration(took(at)!)), sort: took },
    { key: "error", label: "Error", width: "minmax(120px, 2fr)", render: (at) => <span class="wrong">{log.more.get(spans.end.data[at])?.error?.[1]}</span>, sort: (at) => log.more.get(spans.end.data[at])?.error?.[1] ?? null },
  ];
  const opened = open === "" ? null : spans.kind.data[Number(open)] === TASK ? Number(open) : null;
  return (
    <div class="tasks">
      <div class="ev-tools">
        <input type="search" placeholder="Filter: step, task, iteration, error" aria-label="Filter tasks" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <label class="check">
          <input type="checkbox" checked={only === "failed"} onChange={(event) => setOnly(event.currentTarget.checked ? "failed" : "")} /> failed only
        </label>
        <span class="quiet number" role="status">
          {rows.length.toLocaleString()} {rows.length === 1 ? "attempt" : "attempts"}
        </span>
      </div>
      <VirtualTable label="Tasks" rows={rows} columns={columns} idOf={(at) => at} open={opened} onOpen={(at) => setOpen(at === null ? "" : String(at))} empty="No tasks" width={720} />
      {opened !== null && <AttemptView key={opened} id={id} log={log} version={version} span={opened} onSpan={(at) => setOpen(String(at))} />}
    </div>
  );
}

const wordsOf = (log: Log, at: number) =>
  `${log.steps.texts[log.spans.step.data[at]]} ${log.tasks.texts[log.spans.task.data[at]]} #${log.pathOf(log.spans.start.data[at]) ?? ""} ${log.more.get(log.spans.end.data[at])?.error?.join(" ") ?? ""}`.toLowerCase();
