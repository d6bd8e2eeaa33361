/** The whole log in outline: columns that grow, and the spans (step runs, iterations, tasks) they draw.
 *
 * A hundred thousand events take a few megabytes, so that every position in the log can be shown immediately
 * and without a request. Payloads are fetched when they are opened.
 */

/** One page of `/outline`: columns whose numbers point into the page's own tables. */
export interface OutlinePage {
  first: number;
  count: number;
  names: string[];
  steps: string[];
  runs: string[];
  tasks: string[];
  at: number[];
  name: number[];
  state: number[];
  step: number[];
  run: number[];
  path: (number | string)[];
  task: number[];
  attempt: number[];
  cause: number[];
  /** Duration of the tool in ms, of `task.done`. */
  took?: number[];
  more: Record<string, More>;
  next?: number | null;
}

/** Fields of some events only. */
export interface More {
  error?: [kind: string, message: string];
  arcs?: [index: number, target: string, held: boolean, token: string | null][];
  boundary?: string;
  tokens?: string[];
  token?: string;
  reason?: string;
  from?: string | null;
  count?: number;
  outcome?: string;
  do?: string;
  to?: string;
  delay?: number;
  keys?: string[];
  by?: string;
  child?: string;
  worker?: string;
  epoch?: number;
  made?: string[];
  signal?: string;
  total?: number;
  succeeded?: number;
  failed?: number;
  skipped?: number;
}

export const IN_PROGRESS = 0;
export const SUCCESS = 1;
export const ERROR = 2;
export const SKIPPED = 3;

class Column<A extends Float64Array | Int32Array | Uint8Array> {
  length = 0;
  constructor(public data: A) {}
  push(value: number) {
    if (this.length === this.data.length) {
      const wider = new (this.data.constructor as any)(this.length * 2) as A;
      wider.set(this.data as any);
      this.data = wider;
    }
    this.data[this.length++] = value;
  }
}

const ints = () => new Column(new Int32Array(1024));
const bytes = () => new Column(new Uint8Array(1024));

class Table {
  texts: string[] = [];
  private numbers = new Map<string, number>();
  number(text: string): number {
    let found = this.numbers.get(text);
    if (found === undefined) {
      found = this.texts.length;
      this.numbers.set(text, found);
      this.texts.push(text);
    }
    return found;
  }
}

export type SpanKind = 0 | 1 | 2;
export const STEP: SpanKind = 0;
export const ITERATION: SpanKind = 1;
export const TASK: SpanKind = 2;

/** Spans in the order they began; `end` is 0 while one is open. Rows are seqs, times come from the log. */
export class Spans {
  kind = bytes();
  step = ints();
  run = ints();
  path = ints();
  task = ints();
  attempt = ints();
  start = ints();
  begun = ints();
  end = ints();
  state = bytes();
  took = new Column(new Float64Array(1024));
  get length() {
    return this.kind.length;
  }
}

export class Log {
  names = new Table();
  steps = new Table();
  runs = new Table();
  tasks = new Table();
  paths = new Table();
  at = new Column(new Float64Array(1024));
  name = bytes();
  state = bytes();
  step = ints();
  run = ints();
  path = ints();
  task = ints();
  attempt = ints();
  cause = ints();
  more = new Map<number, More>();
  spans = new Spans();
  /** Increases with every page; views compare it. */
  version = 0;
  private open = new Map<string, number>();

  /** Seq of the last event. */
  get length() {
    return this.at.length;
  }

  nameOf = (seq: number) => this.names.texts[this.name.data[seq - 1]];
  stepOf = (seq: number) => this.text(this.steps, this.step, seq);
  taskOf = (seq: number) => this.text(this.tasks, this.task, seq);
  runOf = (seq: number) => this.text(this.runs, this.run, seq);
  pathOf = (seq: number) => this.text(this.paths, this.path, seq);
  atOf = (seq: number) => this.at.data[seq - 1];
  private text(table: Table, column: Column<Int32Array>, seq: number): string | null {
    const number = column.data[seq - 1];
    return number < 0 ? null : table.texts[number];
  }

  /** Add a page; events that are already present are skipped. */
  take(page: OutlinePage) {
    const names = page.names.map((text) => this.names.number(text));
    const steps = page.steps.map((text) => this.steps.number(text));
    const runs = page.runs.map((text) => this.runs.number(text));
    const tasks = page.tasks.map((text) => this.tasks.number(text));
    for (let i = Math.max(0, this.length + 1 - page.first); i < page.count; i++) {
      const seq = page.first + i;
      this.at.push(page.at[i]);
      this.name.push(names[page.name[i]]);
      this.state.push(page.state[i]);
      this.step.push(page.step[i] < 0 ? -1 : steps[page.step[i]]);
      this.run.push(page.run[i] < 0 ? -1 : runs[page.run[i]]);
      this.path.push(page.path[i] === -1 ? -1 : this.paths.number(String(page.path[i])));
      this.task.push(page.task[i] < 0 ? -1 : tasks[page.task[i]]);
      this.attempt.push(page.attempt[i]);
      this.cause.push(page.cause[i]);
      const more = page.more[seq];
      if (more) this.more.set(seq, more);
      this.span(seq, page.took?.[i] ?? 0);
    }
    this.version++;
  }

  private begin(kind: SpanKind, key: string, seq: number) {
    const spans = this.spans;
    this.open.set(key, spans.length);
    const row = seq - 1;
    spans.kind.push(kind);
    spans.step.push(this.step.data[row]);
    spans.run.push(this.run.data[row]);
    spans.path.push(this.path.data[row]);
    spans.task.push(this.task.data[row]);
    spans.attempt.push(this.attempt.data[row]);
    spans.start.push(seq);
    spans.begun.push(kind === STEP ? 0 : seq);
    spans.end.push(0);
    spans.state.push(IN_PROGRESS);
    spans.took.push(0);
  }

  /** When a span started, in ms. The start of a task is often recorded together with its end; then its duration counts. */
  spanStart(at: number): number {
    const { start, end, took } = this.spans;
    const recorded = this.atOf(start.data[at]);
    return end.data[at] && took.data[at] ? Math.min(recorded, this.atOf(end.data[at]) - took.data[at]) : recorded;
  }

  private finish(key: string, seq: number, state: number, took = 0) {
    const at = this.open.get(key);
    if (at === undefined) return;
    this.open.delete(key);
    this.spans.end.data[at] = seq;
    this.spans.state.data[at] = state;
    this.spans.took.data[at] = took;
  }

  private span(seq: number, took: number) {
    const row = seq - 1;
    const run = this.run.data[row];
    const path = this.path.data[row];
    switch (this.nameOf(seq)) {
      case "step.scheduled":
        return this.begin(STEP, `${run}`, seq);
      case "step.started":
      case "loop.started": {
        const at = this.open.get(`${run}`);
        if (at !== undefined && !this.spans.begun.data[at]) this.spans.begun.data[at] = seq;
        return;
      }
      case "step.done":
      case "step.failed":
        return this.finish(`${run}`, seq, this.state.data[row]);
      case "loop.iteration.started":
        return this.open.has(`${run}/${path}`) ? undefined : this.begin(ITERATION, `${run}/${path}`, seq);
      case "loop.iteration.done":
      case "loop.iteration.failed":
        return this.finish(`${run}/${path}`, seq, this.state.data[row]);
      case "task.started":
        return this.begin(TASK, `${run}/${path}:${this.task.data[row]}`, seq);
      case "task.done":
        return this.finish(`${run}/${path}:${this.task.data[row]}`, seq, this.state.data[row], took);
    }
  }
}
