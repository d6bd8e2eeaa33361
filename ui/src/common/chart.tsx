/** A small time-series chart, accessible by pointer, arrow keys and screen reader. */
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { shortTime } from "./times";

export interface Series {
  name: string;
  /** A colour token: `run`, `ok`, `bad`, `quiet`. */
  colour: string;
  values: number[];
  area?: boolean;
  dashed?: boolean;
}

interface ChartProps {
  title: string;
  unit: string;
  /** Milliseconds, ascending. */
  times: number[];
  series: Series[];
  /** Milliseconds between two samples; a longer distance is a gap. */
  every: number;
  digits?: number;
}

const NARROWEST = 220;
const HEIGHT = 150;
const LEFT = 42;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 22;

export function Chart({ title, unit, times, series, every, digits = 0 }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(NARROWEST);
  const [at, setAt] = useState<number | null>(null);
  useLayoutEffect(() => {
    if (!box.current) return;
    const fit = (to: number) => setWidth(Math.max(NARROWEST, to));
    fit(box.current.clientWidth); // before the first paint, to avoid a layout shift
    const watch = new ResizeObserver(([entry]) => fit(entry.contentRect.width));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const first = times[0] ?? 0;
  const last = times[times.length - 1] ?? 1;
  const from = Math.min(first, last - 2 * 60_000);
  const top = niceTop(Math.max(...series.flatMap((each) => each.values), 0));
  const x = (time: number) => LEFT + ((time - from) / Math.max(1, last - from)) * (width - LEFT - RIGHT);
  const y = (value: number) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const shapes = useMemo(
    () => series.map((each) => drawn(times, each.values, every, x, y, y(0))),
    [times, series, width, top],
  );
  const say = (value: number) => `${value.toFixed(value && value < 1 ? Math.max(digits, 2) : digits)}`;
  const shown = at === null ? times.length - 1 : at;
  const spoken = series.map((each) => `${each.name} ${say(each.values[times.length - 1] ?? 0)}`).join(", ");

  const point = (event: { clientX: number; currentTarget: Element }) => {
    const { left } = event.currentTarget.getBoundingClientRect();
    const wanted = from + ((event.clientX - left - LEFT) / (width - LEFT - RIGHT)) * (last - from);
    let near = 0;
    times.forEach((time, index) => {
      if (Math.abs(time - wanted) < Math.abs(times[near] - wanted)) near = index;
    });
    setAt(near);
  };
  const step = (event: KeyboardEvent) => {
    const by = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (!by) return;
    event.preventDefault();
    setAt(Math.min(times.length - 1, Math.max(0, shown + by)));
  };

  return (
    <figure class="chart card">
      <figcaption>
        <strong>{title}</strong>
        <span class="quiet"> {unit}</span>
        <span class="legend">
          {series.map((each) => (
            <span key={each.name}>
              <i class={each.dashed ? "dashed" : ""} style={{ color: `var(--${each.colour})` }} aria-hidden="true" />
              {each.name} <b class="number">{times.length ? say(each.values[shown] ?? 0) : "–"}</b>
            </span>
          ))}
          <span class="quiet number">{at !== null && times.length ? shortTime(times[shown]) : "now"}</span>
        </span>
      </figcaption>
      <div ref={box}>
        <svg
          width={width}
          height={HEIGHT}
          role="img"
          aria-label={`${title}, ${unit}. Now: ${spoken}. Use the arrow keys to read earlier samples.`}
          tabIndex={0}
          onPointerMove={point}
          onPointerLeave={() => setAt(null)}
          onKeyDown={step}
          onBlur={() => setAt(null)}
        >
          {[0, top / 2, top].map((value) => (
            <g key={value}>
              <line class="rule" x1={LEFT} x2={width - RIGHT} y1={y(value)} y2={y(value)} />
              <text x={LEFT - 8} y={y(value) + 4} text-anchor="end">
                {compact(value)}
              </text>
            </g>
          ))}
          {ticks(from, last, Math.max(2, Math.floor(width / 88))).map((time) => (
            <text key={time} x={x(time)} y={HEIGHT - 5} text-anchor="middle">
              {(last - from > 2 * 86_400_000 ? date : clock).format(time)}
            </text>
          ))}
          {series.map((each, index) => (
            <g key={each.name} style={{ color: `var(--${each.colour})` }}>
              {each.area && <path class="area" d={shapes[index].area} />}
              <path class={each.dashed ? "line dashed" : "line"} d={shapes[index].line} />
            </g>
          ))}
          {at !== null && times.length > 0 && (
            <g>
              <line class="cursor" x1={x(times[at])} x2={x(times[at])} y1={TOP} y2={HEIGHT - BOTTOM} />
              {series.map((each) => (
                <circle key={each.name} cx={x(times[at])} cy={y(each.values[at] ?? 0)} r="3.5" style={{ fill: `var(--${each.colour})` }} />
              ))}
            </g>
          )}
        </svg>
      </div>
    </figure>
  );
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const date = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

function drawn(times: number[], values: number[], every: number, x: (time: number) => number, y: (value: number) => number, ground: number) {
  let line = "";
  let area = "";
  let begun = 0;
  times.forEach((time, index) => {
    const gap = index === 0 || time - times[index - 1] > 2.5 * every;
    const spot = `${x(time).toFixed(1)},${y(values[index] ?? 0).toFixed(1)}`;
    if (gap) {
      if (index) area += `L${x(times[index - 1]).toFixed(1)},${ground}L${begun.toFixed(1)},${ground}Z`;
      begun = x(time);
    }
    line += `${gap ? "M" : "L"}${spot}`;
    area += `${gap ? "M" : "L"}${spot}`;
  });
  if (times.length) area += `L${x(times[times.length - 1]).toFixed(1)},${ground}L${begun.toFixed(1)},${ground}Z`;
  return { line, area };
}

/** The smallest of 1, 2, 5 times a power of ten that is not less than the value. */
function niceTop(value: number): number {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 4, 5, 10].find((each) => each * power >= value) ?? 10);
}

const compact = (value: number) => new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 }).format(value);

const MINUTE = 60_000;
const STEPS = [1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 20_160].map((each) => each * MINUTE);

/** Round local times within a span, up to a maximum number. */
function ticks(from: number, to: number, most: number): number[] {
  const step = STEPS.find((each) => (to - from) / each <= most) ?? STEPS[STEPS.length - 1];
  const zone = new Date(from).getTimezoneOffset() * MINUTE;
  const found = [];
  for (let time = Math.ceil((from - zone + step / 4) / step) * step + zone; time < to - step / 4; time += step) found.push(time);
  return found;
}
