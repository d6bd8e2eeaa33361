/** The event log: a virtual list; each row expands to its payload and links to the event that caused it. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { EmptyState, ErrorState, Loading } from "../common/components";
import { useQueryValue } from "../common/router";
import { duration, exactly } from "../common/times";
import { JsonTree } from "./json";
import type { Log } from "./log";

const ROW = 30;
const DETAIL = 320;
const MARGIN = 8;

interface Props {
  log: Log;
  version: number;
  id: string;
  seq: number;
  onSeq: (seq: number) => void;
  step: string | null;
}

export function Events({ log, version, id, seq, onSeq, step }: Props) {
  const [kind, setKind] = useQueryValue("events");
  const [text, setText] = useQueryValue("find");
  const [open, setOpen] = useState<number | null>(null);
  const rows = useMemo(() => filtered(log, kind, text, step), [log, version, kind, text, step]);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(480);
  const frame = useRef<HTMLDivElement>(null);
  const [cursor, setCursor] = useState(0);

  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setHeight(entry.contentRect.height));
    watch.observe(frame.current!);
    return () => watch.disconnect();
  }, []);

  const openAt = open === null ? -1 : find(rows, open);
  const total = rows.length * ROW + (openAt >= 0 ? DETAIL : 0);
  const topOf = (at: number) => at * ROW + (openAt >= 0 && at > openAt ? DETAIL : 0);
  const first = Math.max(0, Math.floor((top - (openAt >= 0 && top > openAt * ROW ? DETAIL : 0)) / ROW) - MARGIN);
  const last = Math.min(rows.length, first + Math.ceil(height / ROW) + 2 * MARGIN + (openAt >= 0 ? Math.ceil(DETAIL / ROW) : 0));

  const show = (at: number) => {
    const element = frame.current!;
    const y = topOf(at);
    if (y < element.scrollTop) element.scrollTop = y;
    else if (y + ROW > element.scrollTop + element.clientHeight) element.scrollTop = y + ROW - element.clientHeight;
  };
  const jump = (to: number) => {
    const at = find(rows, to);
    if (at < 0) {
      setKind("");
      setText("");
    }
    setOpen(to);
    requestAnimationFrame(() => {
      const shown = at < 0 ? to - 1 : at;
      frame.current!.scrollTop = Math.max(0, shown * ROW - 60);
    });
  };
  const onKey = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -rows.length, End: rows.length }[event.key];
    if (by !== undefined) {
      const next = Math.max(0, Math.min(rows.length - 1, cursor + by));
      setCursor(next);
      show(next);
      event.preventDefault();
    } else if (event.key === "Enter" && rows.length) {
      setOpen(open === rows[cursor] ? null : rows[cursor]);
      event.preventDefault();
    }
  };

  const shown = [];
  for (let at = first; at < last; at++) {
    const row = rows[at];
    shown.push(
      <Row
        key={row}
        log={log}
        seq={row}
        top={topOf(at)}
        open={row === open}
        at={at}
        current={at === cursor}
        past={row <= seq}
        id={id}
        toggle={() => (setCursor(at), setOpen(row === open ? null : row))}
        jump={jump}
        onSeq={onSeq}
      />,
    );
  }
  return (
    <div class="events">
      <div class="ev-tools">
        <select aria-label="Kind of event" value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
          <option value="">All events</option>
          {KINDS.map(([key, words]) => (
            <option key={key} value={key}>
              {words}
            </option>
          ))}
        </select>
        <input type="search" placeholder="Filter: step, task, error, key …" aria-label="Filter events" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <span class="quiet number" role="status">
          {rows.length.toLocaleString()} of {log.length.toLocaleString()}
          {step ? ` · step ${step}` : ""}
        </span>
      </div>
      <div
        class="ev-frame"
        ref={frame}
        tabIndex={0}
        role="treegrid"
        aria-label="Events"
        aria-rowcount={rows.length}
        aria-activedescendant={rows.length ? `event-${rows[Math.min(cursor, rows.length - 1)]}` : undefined}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
        onKeyDown={onKey}
      >
        {rows.length ? (
          <div class="ev-space" style={{ height: `${total}px` }} role="rowgroup">
            {shown}
          </div>
        ) : (
          <EmptyState title="No matching events" />
        )}
      </div>
    </div>
  );
}

const KINDS: [string, string][] = [
  ["error", "Failures only"],
  ["step.", "Steps"],
  ["task.", "Tasks"],
  ["loop.", "Loops"],
  ["token.", "Tokens"],
  ["next.", "Routing"],
  ["ctx.", "Context"],
  ["child.", "Children"],
  ["worker.", "Lost workers"],
];

const find = (rows: number[], seq: number) => {
  let low = 0;
  let high = rows.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (rows[middle] === seq) return middle;
    if (rows[middle] < seq) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
};

function filtered(log: Log, kind: string, text: string, step: string | null): number[] {
  const found: number[] = [];
  const wanted = text.trim().toLowerCase();
  const names = log.names.texts.map((name) => (kind && kind !== "error" ? name.startsWith(kind) : true));
  const stepNumber = step === null ? -2 : log.steps.texts.indexOf(step);
  for (let row = 0; row < log.length; row++) {
    if (!names[log.name.data[row]]) continue;
    if (kind === "error" && log.state.data[row] !== 2) continue;
    if (stepNumber !== -2 && log.step.data[row] !== stepNumber) continue;
    if (wanted && !words(log, row + 1).toLowerCase().includes(wanted)) continue;
    found.push(row + 1);
  }
  return found;
}

const words = (log: Log, seq: number) =>
  `${log.nameOf(seq)} ${log.stepOf(seq) ?? ""} ${log.taskOf(seq) ?? ""} ${log.pathOf(seq) !== null ? `#${log.pathOf(seq)}` : ""} ${said(log, seq)}`;

/** A short summary of an event. */
export function said(log: Log, seq: number): string {
  const more = log.more.get(seq);
  if (!more) return "";
  if (more.error) return `${more.error[0]}: ${more.error[1]}`;
  if (more.arcs) {
    const taken = more.arcs.filter(([, , , token]) => token).map(([, target]) => target);
    return taken.length ? `→ ${taken.join(", ")}` : "no arc taken";
  }
  if (more.do) return `${more.do}${more.to ? ` ${more.to}` : ""}${more.delay ? ` after ${duration(more.delay * 1000)}` : ""}`;
  if (more.keys) return more.keys.join(", ");
  if (more.count !== undefined) return `${more.count.toLocaleString()} items`;
  if (more.total !== undefined) return `${more.succeeded} of ${more.total} succeeded`;
  if (more.child) return `execution ${more.child}`;
  if (more.made) return more.made.join(", ");
  return more.outcome ?? more.reason ?? more.signal ?? more.by ?? "";
}

interface RowProps {
  log: Log;
  seq: number;
  top: number;
  at: number;
  open: boolean;
  current: boolean;
  past: boolean;
  id: string;
  toggle: () => void;
  jump: (seq: number) => void;
  onSeq: (seq: number) => void;
}

function Row({ log, seq, top, at, open, current, past, id, toggle, jump, onSeq }: RowProps) {
  const begin = log.atOf(1);
  const state = ["", "success", "failed", "skipped"][log.state.data[seq - 1]];
  return (
    <div id={`event-${seq}`} role="row" aria-level={1} aria-rowindex={at + 1} aria-expanded={open} class={`ev-row ${open ? "open" : ""} ${current ? "current" : ""} ${past ? "" : "future"}`} style={{ top: `${top}px` }}>
      <div class="ev-line" onClick={toggle}>
        <span role="gridcell" class="ev-seq number">
          {seq}
        </span>
        <span role="gridcell" class="ev-at number" title={exactly(log.atOf(seq))}>
          +{duration(log.atOf(seq) - begin)}
        </span>
        <span role="gridcell" class={`ev-name ${state}`}>
          {log.nameOf(seq)}
        </span>
        <span role="gridcell" class="ev-where">
          {log.stepOf(seq)}
          {log.pathOf(seq) !== null && <span class="quiet">[{log.pathOf(seq)}]</span>}
          {log.taskOf(seq) && <span class="quiet"> · {log.taskOf(seq)}</span>}
          {log.attempt.data[seq - 1] > 1 && <em> attempt {log.attempt.data[seq - 1]}</em>}
        </span>
        <span role="gridcell" class={`ev-said ${state}`}>
          {said(log, seq)}
        </span>
      </div>
      {open && (
        <div class="ev-detail" role="gridcell">
          <Detail id={id} seq={seq} cause={log.cause.data[seq - 1]} causeName={log.cause.data[seq - 1] ? log.nameOf(log.cause.data[seq - 1]) : ""} jump={jump} onSeq={onSeq} />
        </div>
      )}
    </div>
  );
}

interface Envelope {
  seq: number;
  name: string;
  payload: Record<string, unknown>;
  [more: string]: unknown;
}

function Detail({ id, seq, cause, causeName, jump, onSeq }: { id: string; seq: number; cause: number; causeName: string; jump: (seq: number) => void; onSeq: (seq: number) => void }) {
  const [event, setEvent] = useState<Envelope | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => {
    const leaving = new AbortController();
    api
      .get<Page<Envelope>>(`/api/executions/${id}/events`, { after: seq - 1, limit: 1 }, leaving.signal)
      .then((page) => setEvent(page.items[0]))
      .catch((error) => leaving.signal.aborted || setProblem(error));
    return () => leaving.abort();
  }, [id, seq]);
  if (problem) return <ErrorState problem={problem} />;
  if (!event) return <Loading what="Loading event" />;
  const { payload, ...envelope } = event;
  return (
    <>
      <p class="ev-links">
        {cause > 0 ? (
          <>
            caused by{" "}
            <button type="button" class="link" onClick={() => jump(cause)}>
              {causeName} ({cause})
            </button>
          </>
        ) : (
          <span class="quiet">no cause in this log</span>
        )}
        {" · "}
        <button type="button" class="link" onClick={() => onSeq(seq)}>
          show this moment
        </button>
      </p>
      <JsonTree value={payload} name="payload" open={2} />
      <JsonTree value={envelope} name="envelope" open={0} />
    </>
  );
}
