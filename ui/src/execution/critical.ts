/** The critical path: the chain of step runs that determined how long the execution took. */
import { STEP, type Log } from "./log";

export interface Link {
  step: string;
  /** Milliseconds from the end of the step before it to its own end. */
  took: number;
}

/** From the step that ended last back to the entry, along the events that caused each step to be scheduled. */
export function criticalPath(log: Log): Link[] {
  const { spans } = log;
  const byRun = new Map<number, number>();
  let last = -1;
  for (let at = 0; at < spans.length; at++) {
    if (spans.kind.data[at] !== STEP || !spans.end.data[at]) continue;
    byRun.set(spans.run.data[at], at);
    if (last < 0 || spans.end.data[at] > spans.end.data[last]) last = at;
  }
  const found: Link[] = [];
  const seen = new Set<number>();
  while (last >= 0 && !seen.has(last)) {
    seen.add(last);
    const cause = log.cause.data[spans.start.data[last] - 1];
    const before = cause ? (byRun.get(log.run.data[cause - 1]) ?? -1) : -1;
    const begin = before >= 0 ? log.atOf(spans.end.data[before]) : log.atOf(spans.start.data[last]);
    found.unshift({ step: log.steps.texts[spans.step.data[last]], took: Math.max(0, log.atOf(spans.end.data[last]) - begin) });
    last = before;
  }
  return found;
}
