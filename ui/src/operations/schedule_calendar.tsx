/** The calendar of all schedules: what starts on each of the next days. */
import { useMemo } from "preact/hooks";
import { useFetch } from "../common/fetch";
import { ErrorState, Loading } from "../common/components";

interface Entry {
  schedule: string;
  path: string;
  ticks: string[];
  /** The number of ticks is larger than those listed. */
  more: boolean;
}

const WEEKS = 4;
const MAX_LINES = 5;
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "short" });
const dayLabel = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });

interface Line {
  schedule: string;
  path: string;
  times: number[];
}

export function Calendar({ onOpen }: { onOpen: (schedule: string) => void }) {
  const { value, problem, reload } = useFetch<{ entries: Entry[]; until: string }>("/api/schedules/calendar", { days: 7 * WEEKS }, 60_000);
  const days = useMemo(() => (value ? byDay(value.entries) : []), [value]);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading calendar" />;
  const cut = value.entries.filter((each) => each.more);
  return (
    <>
      <div class="calendar" role="list" aria-label="Next runs by day">
        {days.map(({ date, lines }, at) => (
          <section key={date.getTime()} role="listitem" class={`card ${at === 0 ? "today" : ""} ${date.getDay() % 6 === 0 ? "weekend" : ""}`} style={at === 0 ? { gridColumnStart: ((date.getDay() + 6) % 7) + 1 } : undefined}>
            <h3>
              {weekday.format(date)} {dayLabel.format(date)}
            </h3>
            {lines.slice(0, MAX_LINES).map((line) => (
              <button key={line.schedule} type="button" class="link" title={`${line.schedule}: ${line.path}\n${line.times.map((time) => clock.format(time)).join(", ")}`} onClick={() => onOpen(line.schedule)}>
                <span class="number">{line.times.length === 1 ? clock.format(line.times[0]) : `${line.times.length}×`}</span> {line.schedule}
              </button>
            ))}
            {lines.length > MAX_LINES && <span class="quiet">{lines.length - MAX_LINES} more</span>}
          </section>
        ))}
      </div>
      {cut.length > 0 && <p class="quiet foot">Frequent schedules are shown for the next days only: {cut.map((each) => each.schedule).join(", ")}.</p>}
    </>
  );
}

/** The local days from today on, each with its schedules in order of their first run. */
function byDay(entries: Entry[]): { date: Date; lines: Line[] }[] {
  const today = new Date();
  today.setHours(0, 0, 0, 0);
  const days = Array.from({ length: 7 * WEEKS - ((today.getDay() + 6) % 7) }, (_, at) => {
    const date = new Date(today);
    date.setDate(date.getDate() + at);
    return { date, lines: [] as Line[] };
  });
  const found = new Map(days.map((day) => [day.date.getTime(), day]));
  for (const entry of entries) {
    for (const tick of entry.ticks) {
      const time = Date.parse(tick);
      const date = new Date(time);
      date.setHours(0, 0, 0, 0);
      const day = found.get(date.getTime());
      if (!day) continue;
      const line = day.lines[day.lines.length - 1];
      if (line?.schedule === entry.schedule) line.times.push(time);
      else day.lines.push({ schedule: entry.schedule, path: entry.path, times: [time] });
    }
  }
  for (const day of days) day.lines.sort((one, other) => one.times[0] - other.times[0]);
  return days;
}
