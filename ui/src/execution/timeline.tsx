/** The timeline: a row per step, iterations in lanes or (if there are too many) as a curve, tasks below.
 *
 * The window is a stretch of time; drag over the axis or the rows to zoom in, the buttons or + − and the arrow keys do
 * the same. Everything is drawn as it was at the chosen moment: what had not ended then is open.
 */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Button, EmptyState } from "../common/components";
import { criticalPath } from "./critical";
import { duration, useNow } from "../common/times";
import { ERROR, ITERATION, STEP, TASK, type Log } from "./log";

const MOST_BARS = 360;
const MOST_LANES = 72;
const MANY_LANES = 14; // above this number lanes are drawn thinner
const BUCKETS = 240;

interface Bar {
  from: number;
  to: number;
  wait: number;
  state: number;
  open: boolean;
  title: string;
  seq: number;
  /** Tasks within an iteration's bar, if few enough are visible. */
  iteration: string | null;
  inner: { from: number; to: number; state: number; title: string }[];
}

interface Lane {
  key: string;
  label: string;
  level: 0 | 1;
  step: string;
  bars: Bar[][];
  curve: Curve | null;
  count: number;
}

interface Curve {
  running: Float32Array;
  failed: Float32Array;
  most: number;
}

interface Props {
  log: Log;
  version: number;
  seq: number;
  order: string[];
  selected: string | null;
  onSelect: (step: string | null) => void;
  onSeq: (seq: number) => void;
  /** The execution is running: open bars grow with time. */
  live: boolean;
}

export function Timeline({ log, version, seq, order, selected, onSelect, onSeq, live }: Props) {
  const clock = useNow(live, 500);
  const begin = log.length ? log.atOf(1) : 0;
  const last = Math.max(log.length ? log.atOf(log.length) : 0, live ? clock : 0);
  const now = live || !seq ? last : log.atOf(Math.min(seq, log.length));
  const whole: [number, number] = [0, Math.max(1, last - begin) * 1.01];
  const [zoom, setZoom] = useState<[number, number] | null>(null);
  const [from, to] = zoom ?? whole;
  const lanes = useMemo(() => lay(log, seq, begin, now - begin, from, to, order), [log, version, seq, now, from, to, order]);
  const [drag, setDrag] = useState<[number, number] | null>(null);
  const track = useRef<HTMLDivElement>(null);

  const scale = (factor: number, centre = 0.5) => {
    const span = Math.min(whole[1], Math.max(0.5, (to - from) * factor));
    const middle = from + (to - from) * centre;
    const start = Math.max(0, Math.min(whole[1] - span, middle - span * centre));
    setZoom(span >= whole[1] * 0.999 ? null : [start, start + span]);
  };
  const shift = (by: number) => {
    if (!zoom) return;
    const span = to - from;
    const start = Math.max(0, Math.min(whole[1] - span, from + span * by));
    setZoom([start, start + span]);
  };
  const place = (event: PointerEvent | WheelEvent) => {
    const box = track.current!.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "+" || event.key === "=") scale(0.5);
    else if (event.key === "-") scale(2);
    else if (event.key === "0") setZoom(null);
    else if (event.key === "ArrowLeft") shift(-0.25);
    else if (event.key === "ArrowRight") shift(0.25);
    else return;
    event.preventDefault();
  };
  const down = (event: PointerEvent) => {
    if (event.button) return;
    const start = place(event);
    const move = (moving: PointerEvent) => setDrag([start, place(moving)]);
    const up = (ending: PointerEvent) => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      setDrag(null);
      const end = place(ending);
      if (Math.abs(end - start) > 0.01) {
        const [a, b] = [Math.min(start, end), Math.max(start, end)];
        setZoom([from + (to - from) * a, from + (to - from) * b]);
      }
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
  };
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // Wheel with a modifier zooms; the listener is not passive, so that it can prevent the page zoom.
    const wheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      scale(event.deltaY > 0 ? 1.25 : 0.8, place(event));
    };
    const element = frame.current;
    if (!element) return;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });

  if (!log.spans.length) {
    return (
      <EmptyState title={live ? "No step has started" : "No step was run"}>
        <p>{live ? "Steps are shown when they start." : "The execution ended before a step started."}</p>
      </EmptyState>
    );
  }
  const percent = (ms: number) => (100 * (ms - from)) / (to - from);
  return (
    <div class="timeline" ref={frame} tabIndex={0} onKeyDown={onKey} role="group" aria-label="Timeline; plus and minus to zoom, arrow keys to move">
      <div class="tl-tools">
        <span class="quiet">
          {duration(to - from)} shown{zoom ? ` of ${duration(whole[1])}` : ""} · drag to zoom
        </span>
        <Button class="small" onClick={() => scale(0.5)} aria-label="Zoom in">
          +
        </Button>
        <Button class="small" onClick={() => scale(2)} disabled={!zoom} aria-label="Zoom out">
          −
        </Button>
        <Button class="small" onClick={() => setZoom(null)} disabled={!zoom}>
          Whole
        </Button>
      </div>
      {!live && <Critical log={log} version={version} onSelect={onSelect} />}
      <div class="tl-grid">
        <div class="tl-axis-label" />
        <div class="tl-axis" ref={track} onPointerDown={down}>
          {ticks(from, to).map((ms) => (
            <span key={ms} style={{ left: `${percent(ms)}%` }}>
              {tickWords(ms, to - from)}
            </span>
          ))}
        </div>
        {lanes.map((lane) => (
          <div key={lane.key} class={`tl-row level-${lane.level} ${selected === lane.step ? "selected" : ""}`}>
            <div class="tl-label">
              <button type="button" title={lane.label} onClick={() => onSelect(selected === lane.step ? null : lane.step)}>
                {lane.label}
              </button>
              {lane.count > 1 && <span class="quiet number">{lane.count.toLocaleString()}</span>}
            </div>
            <div class="tl-track" style={{ height: `${rowHeight(lane)}px` }} onPointerDown={down}>
              {lane.curve ? (
                <CurveView curve={lane.curve} />
              ) : (
                lane.bars.flatMap((bars, at) =>
                  bars.map((bar) => <BarView key={`${bar.seq}`} bar={bar} at={at} lane={lane} percent={percent} now={now - begin} onSeq={onSeq} />),
                )
              )}
            </div>
          </div>
        ))}
        <div class="tl-now" aria-hidden="true">
          {percent(now - begin) >= 0 && percent(now - begin) <= 100 && <i style={{ left: `${percent(now - begin)}%` }} />}
          {drag && <b style={{ left: `${100 * Math.min(...drag)}%`, width: `${100 * Math.abs(drag[1] - drag[0])}%` }} />}
        </div>
      </div>
    </div>
  );
}

function BarView({ bar, at, lane, percent, now, onSeq }: { bar: Bar; at: number; lane: Lane; percent: (ms: number) => number; now: number; onSeq: (seq: number) => void }) {
  const left = Math.max(-0.5, percent(bar.from));
  const right = Math.min(100.5, percent(bar.open ? Math.max(bar.from, now) : bar.to));
  const height = lane.bars.length > 1 ? pitch(lane) - 1 : lane.level === 0 ? 14 : 9;
  const top = lane.bars.length > 1 ? 4 + at * pitch(lane) : (rowHeight(lane) - height) / 2;
  const wait = bar.wait > bar.from ? (100 * (Math.min(bar.wait, bar.open ? now : bar.to) - bar.from)) / Math.max(0.001, (bar.open ? now : bar.to) - bar.from) : 0;
  const tone = bar.open ? "running" : bar.state === ERROR ? "failed" : bar.state === 3 ? "skipped" : "done";
  return (
    <i
      class={`tl-bar ${tone} level-${lane.level}`}
      title={bar.title}
      style={{ left: `${left}%`, width: `max(2px, ${right - left}%)`, top: `${top}px`, height: `${height}px` }}
      onDblClick={() => onSeq(bar.seq)}
    >
      {wait > 1 && <u style={{ width: `${wait}%` }} />}
      {bar.inner.map((task, index) => {
        const whole = Math.max(0.001, (bar.open ? Math.max(bar.from, now) : bar.to) - bar.from);
        const style = { left: `${(100 * (task.from - bar.from)) / whole}%`, width: `max(1px, ${(100 * (task.to - task.from)) / whole}%)` };
        return <s key={index} class={task.state === ERROR ? "failed" : ""} title={`${bar.title}\n${task.title}`} style={style} />;
      })}
    </i>
  );
}

function CurveView({ curve }: { curve: Curve }) {
  const points = (values: Float32Array) => {
    let path = `M0 40`;
    values.forEach((value, at) => (path += `L${((at / (BUCKETS - 1)) * 1000).toFixed(1)} ${(40 - (38 * value) / curve.most).toFixed(1)}`));
    return `${path}L1000 40Z`;
  };
  return (
    <>
      <svg class="tl-curve" viewBox="0 0 1000 40" preserveAspectRatio="none" aria-hidden="true">
        <path d={points(curve.running)} class="running" />
        <path d={points(curve.failed)} class="failed" />
      </svg>
      <span class="tl-most number">max. {Math.round(curve.most).toLocaleString()} concurrent</span>
    </>
  );
}

const pitch = (lane: Lane) => (lane.bars.length > MANY_LANES ? 5 : 8);
const rowHeight = (lane: Lane) => (lane.curve ? 44 : lane.bars.length > 1 ? 8 + pitch(lane) * lane.bars.length : lane.level === 0 ? 26 : 20);

/** The rows of a window: for every step its runs, its iterations, and (outside loops) its tasks. */
function lay(log: Log, seq: number, begin: number, now: number, from: number, to: number, order: string[]): Lane[] {
  const spans = log.spans;
  const end = Math.min(seq || log.length, log.length);
  const groups = new Map<string, { step: string; task: string; kind: number; found: number[]; total: number }>();
  const looping = new Set<number>();
  for (let at = 0; at < spans.length; at++) {
    if (spans.start.data[at] > end) break;
    const kind = spans.kind.data[at];
    if (kind === ITERATION) looping.add(spans.step.data[at]);
    if (kind === TASK && spans.path.data[at] >= 0) continue; // drawn within their iterations
    const step = log.steps.texts[spans.step.data[at]];
    const task = kind === TASK ? log.tasks.texts[spans.task.data[at]] : "";
    const key = `${step}\n${kind}\n${task}`;
    let group = groups.get(key);
    if (!group) groups.set(key, (group = { step, task, kind, found: [], total: 0 }));
    group.total++;
    const start = log.spanStart(at) - begin;
    const stop = spans.end.data[at] && spans.end.data[at] <= end ? log.atOf(spans.end.data[at]) - begin : now;
    if (stop >= from && start <= to) group.found.push(at);
  }
  const ranks = new Map(order.map((step, at) => [step, at]));
  const rank = (step: string) => ranks.get(step) ?? order.length;
  const firsts = new Map<string, number>();
  for (const group of groups.values()) if (group.kind === STEP && !firsts.has(group.step)) firsts.set(group.step, firsts.size);
  const sorted = [...groups.values()].sort(
    (a, b) => (firsts.get(a.step) ?? rank(a.step)) - (firsts.get(b.step) ?? rank(b.step)) || a.kind - b.kind,
  );
  const lanes: Lane[] = [];
  for (const group of sorted) {
    const iterations = group.kind === ITERATION;
    const lane: Lane = {
      key: `${group.step}/${group.kind}/${group.task}`,
      label: group.kind === STEP ? group.step : iterations ? "iterations" : group.task,
      level: group.kind === STEP ? 0 : 1,
      step: group.step,
      bars: [],
      curve: null,
      count: group.total,
    };
    if (group.found.length > MOST_BARS) lane.curve = curve(log, group.found, begin, from, to, end, now);
    else {
      const bars = group.found.map((at) => bar(log, at, begin, end, now));
      lane.bars = iterations || overlapping(bars) ? packed(bars) : [bars];
      if (lane.bars.length > MOST_LANES) {
        lane.bars = [];
        lane.curve = curve(log, group.found, begin, from, to, end, now);
      }
    }
    lanes.push(lane);
  }
  within(log, lanes, begin, end, now);
  return lanes;
}

const MOST_INNER = 600;

/** Add tasks to the bars of iterations, if they can be distinguished. */
function within(log: Log, lanes: Lane[], begin: number, end: number, now: number) {
  const bars = new Map<string, Bar>();
  const spans = log.spans;
  for (const lane of lanes) for (const each of lane.bars.flat()) if (each.iteration) bars.set(each.iteration, each);
  if (!bars.size || bars.size > MOST_BARS) return;
  let count = 0;
  for (let at = 0; at < spans.length && count < MOST_INNER; at++) {
    if (spans.start.data[at] > end) break;
    if (spans.kind.data[at] !== TASK || spans.path.data[at] < 0) continue;
    const outer = bars.get(`${spans.run.data[at]}/${spans.path.data[at]}`);
    if (!outer) continue;
    const ended = spans.end.data[at] > 0 && spans.end.data[at] <= end;
    const from = log.spanStart(at) - begin;
    const to = ended ? log.atOf(spans.end.data[at]) - begin : now;
    const attempt = spans.attempt.data[at] > 1 ? `, attempt ${spans.attempt.data[at]}` : "";
    outer.inner.push({ from, to, state: ended ? spans.state.data[at] : 0, title: `${log.tasks.texts[spans.task.data[at]]}${attempt}: ${duration(to - from)}` });
    count++;
  }
}

function bar(log: Log, at: number, begin: number, end: number, now: number): Bar {
  const spans = log.spans;
  const from = log.spanStart(at) - begin;
  const ended = spans.end.data[at] > 0 && spans.end.data[at] <= end;
  const to = ended ? log.atOf(spans.end.data[at]) - begin : now;
  const begun = spans.begun.data[at] && spans.begun.data[at] <= end ? log.atOf(spans.begun.data[at]) - begin : to;
  const path = spans.path.data[at] >= 0 ? ` iteration ${log.paths.texts[spans.path.data[at]]}` : "";
  const task = spans.kind.data[at] === TASK ? ` ${log.tasks.texts[spans.task.data[at]]}, attempt ${spans.attempt.data[at]}` : "";
  const words = ended ? ["", "done", "failed", "skipped"][spans.state.data[at]] : "running";
  const queued = spans.kind.data[at] === STEP && begun > from ? `, queued ${duration(begun - from)}` : "";
  return {
    from,
    to,
    wait: spans.kind.data[at] === STEP ? begun : from,
    state: spans.state.data[at],
    open: !ended,
    seq: spans.start.data[at],
    inner: [],
    iteration: spans.kind.data[at] === ITERATION ? `${spans.run.data[at]}/${spans.path.data[at]}` : null,
    title: `${log.steps.texts[spans.step.data[at]]}${path}${task}: ${words}, ${duration(to - from)}${queued}`,
  };
}

const overlapping = (bars: Bar[]) => {
  let last = -1;
  for (const each of bars) {
    if (each.from < last) return true;
    last = Math.max(last, each.to);
  }
  return false;
};

/** Assign overlapping bars to lanes: each to the first free one. */
function packed(bars: Bar[]): Bar[][] {
  const lanes: Bar[][] = [];
  const ends: number[] = [];
  for (const each of [...bars].sort((a, b) => a.from - b.from)) {
    let at = ends.findIndex((end) => end <= each.from);
    if (at < 0) at = ends.length;
    (lanes[at] ??= []).push(each);
    ends[at] = each.open ? Infinity : each.to;
  }
  return lanes.length ? lanes : [[]];
}

/** Average concurrency in each part of the window. */
function curve(log: Log, found: number[], begin: number, from: number, to: number, end: number, now: number): Curve {
  const whole = new Float64Array(BUCKETS + 1); // differences: buckets that a span covers completely
  const running = new Float32Array(BUCKETS);
  const failed = new Float32Array(BUCKETS);
  const width = (to - from) / BUCKETS;
  const spans = log.spans;
  for (const at of found) {
    const ended = spans.end.data[at] > 0 && spans.end.data[at] <= end;
    const start = Math.max(0, (log.spanStart(at) - begin - from) / width);
    const stop = Math.min(BUCKETS, Math.max(start, ((ended ? log.atOf(spans.end.data[at]) - begin : now) - from) / width));
    const first = Math.min(BUCKETS - 1, Math.floor(start));
    const last = Math.min(BUCKETS - 1, Math.floor(stop));
    if (first === last) running[first] += stop - start;
    else {
      running[first] += first + 1 - start;
      running[last] += stop - last;
      whole[first + 1]++;
      whole[last]--;
    }
    if (ended && spans.state.data[at] === ERROR) failed[last]++;
  }
  let covering = 0;
  for (let at = 0; at < BUCKETS; at++) running[at] += covering += whole[at];
  return { running, failed, most: Math.max(1, ...running) };
}

function ticks(from: number, to: number): number[] {
  const rough = (to - from) / 7;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough)!;
  const found: number[] = [];
  for (let at = Math.ceil(from / step) * step; at <= to - step * 0.25; at += step) found.push(at);
  return found;
}

function tickWords(ms: number, span: number): string {
  if (ms === 0) return "0";
  if (span < 2000) return `${Math.round(ms * 100) / 100} ms`;
  if (span < 120_000) return `${Math.round(ms / 10) / 100} s`;
  return duration(ms);
}

/** The chain of steps that determined the duration; the longest link is marked. */
function Critical({ log, version, onSelect }: { log: Log; version: number; onSelect: (step: string | null) => void }) {
  const links = useMemo(() => criticalPath(log), [log, version]);
  const [whole, setWhole] = useState(false);
  if (links.length < 2) return null;
  const longest = Math.max(...links.map((each) => each.took));
  // A long path: the links that took longest, in their order.
  const least = whole || links.length <= MOST_LINKS ? -1 : [...links].sort((a, b) => b.took - a.took)[MOST_LINKS - 1].took;
  const shown = links.filter((each) => each.took >= least).slice(0, least < 0 ? links.length : MOST_LINKS);
  return (
    <p class="critical">
      <span class="quiet">Critical path </span>
      {shown.map((each, at) => (
        <span key={at}>
          {at > 0 && (links.indexOf(each) - links.indexOf(shown[at - 1]) > 1 ? " → … → " : " → ")}
          <button type="button" class={`link ${each.took === longest ? "longest" : ""}`} onClick={() => onSelect(each.step)}>
            {each.step}
          </button>{" "}
          <span class="quiet number">{duration(each.took)}</span>
        </span>
      ))}
      {links.length > MOST_LINKS && (
        <button type="button" class="link quiet" onClick={() => setWhole(!whole)}>
          {whole ? " show the longest only" : ` show all ${links.length}`}
        </button>
      )}
    </p>
  );
}

const MOST_LINKS = 8;
