/** The log of tasks: live, searched and filtered, one virtual list for any number of lines. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { address } from "../common/api";
import { Button, EmptyState, ErrorState, Loading } from "../common/components";
import { Copy } from "../common/copy";
import { setQuery, useQueryValue } from "../common/router";
import { exactly } from "../common/times";
import { Ansi, plain } from "./ansi";
import { useLines, type Line } from "./lines";

const ROW = 20;
const MARGIN = 20;
const LEVELS = ["error", "warning", "info", "debug"];

interface Props {
  id: string;
  step: string | null;
  ended: boolean;
  /** Lines up to this instant; null shows all. */
  until: number | null;
}

export function LogView({ id, step, ended, until }: Props) {
  const { lines, loaded, stream, problem, version } = useLines(id, ended);
  const [text, setText] = useQueryValue("log");
  const [iteration, setIteration] = useQueryValue("iteration");
  const [attempt, setAttempt] = useQueryValue("attempt");
  const [output, setOutput] = useQueryValue("stream");
  const [level, setLevel] = useQueryValue("level");
  const [follow, setFollow] = useState(!ended);
  const [open, setOpen] = useState<number | null>(null);
  const find = text.trim().toLowerCase();
  const rows = useMemo(
    () =>
      lines.filter(
        (line) =>
          (!step || line.step === step) &&
          (!iteration || line.iteration === iteration) &&
          (!attempt || line.attempt === Number(attempt)) &&
          (!output || line.stream === output) &&
          (!level || line.level === level) &&
          (until === null || line.at <= until) &&
          (!find || plain(line.text).toLowerCase().includes(find)),
      ),
    [version, step, iteration, attempt, output, level, find, until],
  );
  const facts = useMemo(() => {
    let attempts = 1;
    let dropped = 0;
    let iterations = false;
    for (const line of lines) {
      if (line.attempt > attempts) attempts = line.attempt;
      if (line.iteration) iterations = true;
      dropped += line.dropped ?? 0;
    }
    return { attempts, dropped, iterations };
  }, [version]);

  if (problem && !lines.length) return <ErrorState problem={problem} />;
  if (!loaded && !lines.length) return <Loading what="Loading logs" />;
  if (!lines.length) {
    return (
      <EmptyState title="No logs">
        <p>{ended ? "No task of this execution printed anything." : "Lines that python and shell tasks print are shown here while they run."}</p>
      </EmptyState>
    );
  }
  const where = { step, iteration, attempt, stream: output, search: text.trim() };
  return (
    <div class="log-view">
      <div class="ev-tools">
        <input type="search" placeholder="Search lines" aria-label="Search lines" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        {facts.iterations && (
          <input type="text" class="short" inputMode="numeric" placeholder="iteration" aria-label="Iteration" value={iteration} onInput={(event) => setIteration(event.currentTarget.value.trim())} />
        )}
        {facts.attempts > 1 && (
          <select aria-label="Attempt" value={attempt} onChange={(event) => setAttempt(event.currentTarget.value)}>
            <option value="">all attempts</option>
            {Array.from({ length: Math.min(20, facts.attempts) }, (_, at) => (
              <option key={at} value={String(at + 1)}>
                attempt {at + 1}
              </option>
            ))}
          </select>
        )}
        <select aria-label="Stream" value={output} onChange={(event) => setOutput(event.currentTarget.value)}>
          <option value="">stdout and stderr</option>
          <option value="stdout">stdout</option>
          <option value="stderr">stderr</option>
        </select>
        <select aria-label="Level" value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
          <option value="">all levels</option>
          {LEVELS.map((each) => (
            <option key={each} value={each}>
              {each}
            </option>
          ))}
        </select>
        <span class="quiet number" role="status">
          {rows.length.toLocaleString()} of {lines.length.toLocaleString()} lines
          {step && (
            <>
              {" · "}
              <button type="button" class="link" onClick={() => setQuery({ step: null })} title="Show all steps">
                step {step} ✕
              </button>
            </>
          )}
        </span>
        <span class="grow" />
        {!ended && (
          <Button class="small" aria-pressed={follow} onClick={() => setFollow(!follow)}>
            Follow
          </Button>
        )}
        <a class="button small" href={address(`/api/executions/${id}/logs/text`, where)} download>
          Download
        </a>
      </div>
      {facts.dropped > 0 && (
        <p class="banner" role="status">
          {facts.dropped.toLocaleString()} lines were dropped because they were printed faster than they could be stored, or above the limit of an execution. They are marked where they are missing.
        </p>
      )}
      {stream === "waiting" && (
        <p class="quiet" role="status">
          reconnecting …
        </p>
      )}
      <List rows={rows} find={find} follow={follow && !ended} onLeave={() => setFollow(false)} open={open} setOpen={setOpen} />
    </div>
  );
}

function List({ rows, find, follow, onLeave, open, setOpen }: { rows: Line[]; find: string; follow: boolean; onLeave: () => void; open: number | null; setOpen: (seq: number | null) => void }) {
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(400);
  const placed = useRef(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setRoom(entry.contentRect.height));
    watch.observe(frame.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (!follow) return;
    const element = frame.current!;
    element.scrollTop = placed.current = element.scrollHeight;
  }, [follow, rows.length, room]);
  const first = Math.max(0, Math.floor(top / ROW) - MARGIN);
  const last = Math.min(rows.length, Math.ceil((top + room) / ROW) + MARGIN);
  const shown = rows.slice(first, last);
  const opened = open === null ? null : rows.find((line) => line.seq === open);
  return (
    <>
      <div
        class="log-frame"
        ref={frame}
        tabIndex={0}
        role="log"
        aria-label="Lines"
        aria-live="off"
        onScroll={(event) => {
          const element = event.currentTarget;
          if (follow && element.scrollTop + 4 < Math.min(placed.current, element.scrollHeight - element.clientHeight)) onLeave();
          setTop(element.scrollTop);
        }}
      >
        <div class="log-space" style={{ height: `${rows.length * ROW}px` }}>
          {shown.map((line, at) => (
            <div
              key={line.seq}
              class={`log-line ${line.stream} ${line.dropped ? "dropped" : (line.level ?? "")} ${open === line.seq ? "open" : ""}`}
              style={{ top: `${(first + at) * ROW}px` }}
              onClick={() => !window.getSelection()?.toString() && setOpen(open === line.seq ? null : line.seq)}
            >
              <span class="log-at" title={exactly(line.at)}>
                {clock(line.at)}
              </span>
              <span class="log-where" title={`${line.step} · ${line.task}${line.attempt > 1 ? ` · attempt ${line.attempt}` : ""}`}>
                {line.step}
                {line.iteration && `[${line.iteration}]`}
                {line.attempt > 1 && <em> #{line.attempt}</em>}
              </span>
              <span class="log-text">{line.dropped ? `${line.dropped.toLocaleString()} ${line.text}` : <Ansi text={line.text} find={find} />}</span>
            </div>
          ))}
        </div>
        {!rows.length && <EmptyState title="No matching lines" />}
      </div>
      {opened && (
        <div class="log-open">
          <p class="quiet">
            {opened.step} · {opened.task}
            {opened.iteration && ` · iteration ${opened.iteration}`}
            {opened.attempt > 1 && ` · attempt ${opened.attempt}`} · {opened.stream} · {exactly(opened.at).split("\n")[1]} <Copy text={plain(opened.text)} what="the line" />
          </p>
          <pre class="text">
            <Ansi text={opened.text} find={find} />
          </pre>
        </div>
      )}
    </>
  );
}

function clock(at: number): string {
  const date = new Date(at);
  const two = (value: number) => String(value).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}
