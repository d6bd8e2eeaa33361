/** Two executions of a playbook side by side: version, inputs, steps, durations, outputs, and where they first differ. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { api, Problem } from "../common/api";
import { EmptyState, ErrorState, Loading, Status } from "../common/components";
import { Link } from "../common/router";
import { duration, Time } from "../common/times";
import type { StateDocument } from "../execution/snapshot";
import { DiffView } from "../playbooks/versions";

interface StepRow {
  step: string;
  status: string;
  runs: number;
  attempts: number;
  started_at: string | null;
  ended_at: string | null;
  iterations: number;
  iterations_failed: number;
  error: { kind: string; message: string } | null;
}

interface Document {
  execution_id: string;
  path: string;
  version: string | null;
  status: string;
  started_at: string;
  ended_at: string | null;
  error: { kind: string; message: string } | null;
  steps: StepRow[];
}

interface Side {
  document: Document;
  state: StateDocument;
  text: string;
}

async function load(id: string): Promise<Side> {
  const [document, state, playbook] = await Promise.all([api.get<Document>(`/api/executions/${id}`), api.get<StateDocument>(`/api/executions/${id}/state`), api.get<{ content: string }>(`/api/executions/${id}/playbook`)]);
  return { document, state, text: playbook.content };
}

const took = (row: { started_at: string | null; ended_at: string | null }) => (row.started_at && row.ended_at ? Date.parse(row.ended_at) - Date.parse(row.started_at) : null);

export function Compare({ params: { left, right } }: { params: Record<string, string> }) {
  const [sides, setSides] = useState<[Side, Side] | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    setSides(null);
    setProblem(null);
    Promise.all([load(left), load(right)]).then(setSides, setProblem);
  }, [left, right]);
  const steps = useMemo(() => (sides ? paired(sides[0], sides[1]) : []), [sides]);
  const workload = useMemo(() => (sides ? differences(sides[0].state.workload, sides[1].state.workload) : []), [sides]);
  if (problem) return problem.status === 404 ? <EmptyState title="Execution not found">{<p>{problem.detail}</p>}</EmptyState> : <ErrorState problem={problem} />;
  if (!sides) return <Loading what="Comparing" />;
  const [a, b] = sides;
  const first = steps.find((each) => each.differs);
  return (
    <div class="compare">
      <div class="page-head">
        <h1 class="grow">
          <Link to="/executions">Executions</Link> <span class="quiet">/</span> compare
        </h1>
        <Link class="button" to={`/compare/${right}/${left}`}>
          Swap
        </Link>
      </div>
      <table class="list card compare-heads" aria-label="Executions">
        <thead>
          <tr>
            <th />
            <th>
              <Link to={`/executions/${left}`}>{left}</Link>
            </th>
            <th>
              <Link to={`/executions/${right}`}>{right}</Link>
            </th>
          </tr>
        </thead>
        <tbody>
          <Facts label="Playbook" values={[a.document.path, b.document.path]} />
          <Facts label="Version" values={[a.document.version ?? "–", b.document.version ?? "–"]} />
          <Facts label="Status" values={[a.document.status, b.document.status]} show={(value) => <Status status={value} />} />
          <Facts label="Started" values={[a.document.started_at, b.document.started_at]} show={(value) => <Time at={value} />} same />
          <Facts label="Duration" values={[words(took(a.document)), words(took(b.document))]} same />
          <Facts label="Error" values={[a.document.error?.message ?? "", b.document.error?.message ?? ""]} />
        </tbody>
      </table>
      <section class="card pad" aria-label="First difference">
        <h2>First difference</h2>
        {first ? (
          <p>
            {workload.length > 0 && <>The inputs differ ({workload.map((each) => each.key).join(", ")}). </>}
            Step <strong>{first.step}</strong>: {first.why}.
          </p>
        ) : (
          <p class="quiet">{workload.length ? `The inputs differ (${workload.map((each) => each.key).join(", ")}); the steps have the same status and output.` : "Inputs, steps and outputs are equal."}</p>
        )}
      </section>
      <section class="card pad" aria-label="Inputs">
        <h2>Inputs</h2>
        {workload.length ? <Values rows={workload} /> : <p class="quiet">The same workload.</p>}
      </section>
      <section class="card pad" aria-label="Steps">
        <h2>Steps</h2>
        <div class="scroll-x" tabIndex={0} role="group" aria-label="Table">
          <table class="list">
            <thead>
              <tr>
                <th>Step</th>
                <th>Status</th>
                <th class="right">Duration</th>
                <th>Status</th>
                <th class="right">Duration</th>
                <th>Difference</th>
              </tr>
            </thead>
            <tbody>
              {steps.map((each) => (
                <tr key={each.step} class={each.differs ? "differs" : ""}>
                  <td>{each.step}</td>
                  {[each.left, each.right].map((row, at) => (
                    <>
                      <td key={`s${at}`}>{row ? <Status status={row.status} /> : <span class="quiet">not run</span>}</td>
                      <td key={`d${at}`} class="right number">
                        {row ? words(took(row)) : ""}
                      </td>
                    </>
                  ))}
                  <td>{each.why}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
      {a.text !== b.text && (
        <section class="card pad" aria-label="Playbook">
          <h2>Playbook</h2>
          <DiffView before={a.text} after={b.text} />
        </section>
      )}
    </div>
  );
}

const words = (ms: number | null) => (ms === null ? "–" : duration(ms));

function Facts({ label, values, show = (value) => value, same = false }: { label: string; values: [string, string]; show?: (value: string) => any; same?: boolean }) {
  const differs = !same && values[0] !== values[1];
  return (
    <tr class={differs ? "differs" : ""}>
      <th scope="row">{label}</th>
      <td>{show(values[0])}</td>
      <td>{show(values[1])}</td>
    </tr>
  );
}

interface Difference {
  key: string;
  left: unknown;
  right: unknown;
}

function Values({ rows }: { rows: Difference[] }) {
  return (
    <div class="scroll-x" tabIndex={0} role="group" aria-label="Table">
      <table class="list">
        <thead>
          <tr>
            <th>Key</th>
            <th>Left</th>
            <th>Right</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((each) => (
            <tr key={each.key} class="differs">
              <td class="mono">{each.key}</td>
              <td class="mono">{text(each.left)}</td>
              <td class="mono">{text(each.right)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const text = (value: unknown) => {
  if (value === undefined) return "–";
  const found = typeof value === "string" ? value : JSON.stringify(value);
  return found.length > 200 ? `${found.slice(0, 199)}…` : found;
};

/** The paths at which two values differ. */
export function differences(left: unknown, right: unknown, key = ""): Difference[] {
  if (JSON.stringify(left) === JSON.stringify(right)) return [];
  if (left && right && typeof left === "object" && typeof right === "object" && !Array.isArray(left) && !Array.isArray(right)) {
    const keys = [...new Set([...Object.keys(left), ...Object.keys(right)])];
    return keys.flatMap((each) => differences((left as any)[each], (right as any)[each], key ? `${key}.${each}` : each));
  }
  return [{ key: key || "value", left, right }];
}

interface Pair {
  step: string;
  left: StepRow | null;
  right: StepRow | null;
  differs: boolean;
  why: string;
}

/** The steps in the order in which they started, with the reason why they differ. */
function paired(a: Side, b: Side): Pair[] {
  const rows = new Map<string, Pair>();
  const add = (side: "left" | "right", row: StepRow) => {
    if (!row.runs && row.status !== "skipped") return;
    const known = rows.get(row.step) ?? { step: row.step, left: null, right: null, differs: false, why: "" };
    known[side] = row;
    rows.set(row.step, known);
  };
  a.document.steps.forEach((row) => add("left", row));
  b.document.steps.forEach((row) => add("right", row));
  const began = (pair: Pair) => Math.min(...[pair.left, pair.right].map((row, at) => (row?.started_at ? Date.parse(row.started_at) - Date.parse((at ? b : a).document.started_at) : Infinity)));
  const found = [...rows.values()].sort((x, y) => began(x) - began(y));
  for (const pair of found) {
    const { left, right } = pair;
    if (!left || !right) pair.why = `ran only in the ${left ? "left" : "right"} execution`;
    else if (left.status !== right.status) pair.why = `${left.status}, then ${right.status}${right.error ? `: ${right.error.message}` : left.error ? `: ${left.error.message}` : ""}`;
    else if (left.runs !== right.runs) pair.why = `${left.runs} and ${right.runs} runs`;
    else if (left.iterations !== right.iterations) pair.why = `${left.iterations} and ${right.iterations} iterations`;
    else if (left.iterations_failed !== right.iterations_failed) pair.why = `${left.iterations_failed} and ${right.iterations_failed} failed iterations`;
    else {
      const changed = differences(a.state.steps[pair.step]?.output?.data, b.state.steps[pair.step]?.output?.data, "output");
      if (changed.length) pair.why = `${changed[0].key}: ${text(changed[0].left)} and ${text(changed[0].right)}`;
    }
    pair.differs = pair.why !== "";
    if (!pair.differs && left && right && left.attempts !== right.attempts) pair.why = `${left.attempts} and ${right.attempts} attempts`;
  }
  return found;
}
