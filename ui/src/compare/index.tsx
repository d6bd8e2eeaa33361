/** Two executions side by side: version, inputs, steps, durations, outputs, and where they first differ (`noetl compare`). */
import { useEffect, useState } from "preact/hooks";
import { api, Problem } from "../common/api";
import { EmptyState, ErrorState, Loading, Status } from "../common/components";
import { useFetch } from "../common/fetch";
import { Link } from "../common/router";
import { duration, Time } from "../common/times";
import type { Row } from "../executions/data";
import { DiffView } from "../playbooks/versions";

interface Difference {
  path: string;
  a?: unknown;
  b?: unknown;
}

interface StepSide {
  status: string;
  runs: number;
  attempts: number;
  duration_ms: number | null;
  iterations: number;
  iterations_failed: number;
  error: string | null;
}

interface StepPair {
  step: string;
  a: StepSide | null;
  b: StepSide | null;
  output: "same" | "differs" | "missing";
}

interface Divergence {
  where: string;
  a: { seq: number; name: string } | null;
  b: { seq: number; name: string } | null;
  differences: Difference[];
}

interface Comparison {
  a: Row;
  b: Row;
  version: { same: boolean };
  inputs: Difference[];
  outputs: Difference[];
  steps: StepPair[];
  first_divergence: Divergence | null;
}

export function Compare({ params: { left, right } }: { params: Record<string, string> }) {
  const { value, problem, reload } = useFetch<Comparison>(`/api/executions/${left}/compare/${right}`);
  if (problem && !value) {
    return problem.status === 404 ? (
      <EmptyState title="Execution not found">
        <p>{problem.detail}</p>
      </EmptyState>
    ) : (
      <ErrorState problem={problem} retry={reload} />
    );
  }
  if (!value) return <Loading what="Comparing" />;
  const { a, b } = value;
  const step = value.steps.find((each) => reasonOf(each));
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
            {[left, right].map((id) => (
              <th key={id}>
                <Link to={`/executions/${id}`}>{id}</Link>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <Facts label="Playbook" values={[a.path, b.path]} />
          <Facts label="Version" values={[a.version ?? "–", b.version ?? "–"]} differs={!value.version.same} />
          <Facts label="Status" values={[a.status, b.status]} show={(status) => <Status status={status} />} />
          <Facts label="Started" values={[a.started_at, b.started_at]} show={(at) => <Time at={at} />} differs={false} />
          <Facts label="Started by" values={[a.trigger || "–", b.trigger || "–"]} differs={false} />
          <Facts label="Duration" values={[words(a.duration_ms), words(b.duration_ms)]} differs={false} />
          <Facts label="Error" values={[a.error ?? "–", b.error ?? "–"]} />
        </tbody>
      </table>
      <section class="card pad" aria-label="First difference">
        <h2>First difference</h2>
        {!value.inputs.length && !step && !value.first_divergence && <p class="quiet">Inputs, steps and outputs are equal.</p>}
        {value.inputs.length > 0 && (
          <p>
            The inputs differ ({value.inputs.slice(0, 5).map((each) => each.path).join(", ")}
            {value.inputs.length > 5 ? ", …" : ""}).
          </p>
        )}
        {step && (
          <p>
            Step <strong>{step.step}</strong>: {reasonOf(step)}.
          </p>
        )}
        {value.first_divergence && <First divergence={value.first_divergence} left={left} right={right} />}
      </section>
      <section class="card pad" aria-label="Inputs">
        <h2>Inputs</h2>
        {value.inputs.length ? <Values rows={value.inputs} /> : <p class="quiet">The same workload.</p>}
      </section>
      <Steps steps={value.steps} />
      <section class="card pad" aria-label="Output">
        <h2>Output</h2>
        {value.outputs.length ? <Values rows={value.outputs} /> : <p class="quiet">The same output.</p>}
      </section>
      {!value.version.same && <Texts left={left} right={right} />}
    </div>
  );
}

function First({ divergence, left, right }: { divergence: Divergence; left: string; right: string }) {
  const side = (id: string, event: { seq: number; name: string } | null) => (event ? <Link to={`/executions/${id}?at=${event.seq}&tab=events`}>{`${event.name} (event ${event.seq})`}</Link> : "no such event");
  return (
    <>
      <p>
        First different event{divergence.where === "execution" ? "" : ` (${divergence.where})`}: {side(left, divergence.a)} and {side(right, divergence.b)}.
      </p>
      {divergence.differences.length > 0 && <Values rows={divergence.differences.slice(0, 10)} />}
    </>
  );
}

function Steps({ steps }: { steps: StepPair[] }) {
  const longest = Math.max(1, ...steps.flatMap((each) => [each.a?.duration_ms ?? 0, each.b?.duration_ms ?? 0]));
  return (
    <section class="card pad" aria-label="Steps">
      <h2>Steps</h2>
      <div class="scroll-x" tabIndex={0} role="group" aria-label="Table">
        <table class="list">
          <thead>
            <tr>
              <th>Step</th>
              <th>Left</th>
              <th>Right</th>
              <th>Durations</th>
              <th>Difference</th>
            </tr>
          </thead>
          <tbody>
            {steps.map((each) => (
              <tr key={each.step} class={reasonOf(each) ? "differs" : ""}>
                <td class="mono">{each.step}</td>
                {[each.a, each.b].map((side, at) => (
                  <td key={at}>{side ? <Status status={side.status} /> : <span class="quiet">not run</span>}</td>
                ))}
                <td>
                  {[each.a, each.b].map((side, at) => (
                    <div key={at} class="pair-bar">
                      <u class={at ? "right-bar" : ""} style={{ width: `${(100 * (side?.duration_ms ?? 0)) / longest}px` }} />
                      <span class="number quiet">{side ? words(side.duration_ms) : "–"}</span>
                    </div>
                  ))}
                </td>
                <td>{reasonOf(each)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** Why two runs of a step differ; empty if they do not. */
function reasonOf({ a, b, output }: StepPair): string {
  if (!a || !b) return `ran only in the ${a ? "left" : "right"} execution`;
  if (a.status !== b.status) return `${a.status}, then ${b.status}${b.error || a.error ? `: ${b.error ?? a.error}` : ""}`;
  if (a.runs !== b.runs) return `${a.runs} and ${b.runs} runs`;
  if (a.iterations !== b.iterations) return `${a.iterations} and ${b.iterations} iterations`;
  if (a.iterations_failed !== b.iterations_failed) return `${a.iterations_failed} and ${b.iterations_failed} failed iterations`;
  if (output === "differs") return "different output";
  return a.attempts !== b.attempts ? `${a.attempts} and ${b.attempts} attempts` : "";
}

/** The texts of the playbook, as a diff. */
function Texts({ left, right }: { left: string; right: string }) {
  const [texts, setTexts] = useState<[string, string] | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    const read = (id: string) => api.get<{ content: string }>(`/api/executions/${id}/playbook`).then((found) => found.content);
    Promise.all([read(left), read(right)]).then(setTexts, setProblem);
  }, [left, right]);
  return (
    <section class="card pad" aria-label="Playbook">
      <h2>Playbook</h2>
      {problem ? <ErrorState problem={problem} /> : texts ? <DiffView before={texts[0]} after={texts[1]} /> : <Loading what="Loading playbooks" />}
    </section>
  );
}

const words = (ms: number | null) => (ms === null ? "–" : duration(ms));

function Facts({ label, values, show = (value) => value, differs = values[0] !== values[1] }: { label: string; values: [string, string]; show?: (value: string) => any; differs?: boolean }) {
  return (
    <tr class={differs ? "differs" : ""}>
      <th scope="row">{label}</th>
      <td>{show(values[0])}</td>
      <td>{show(values[1])}</td>
    </tr>
  );
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
            <tr key={each.path} class="differs">
              <td class="mono">{each.path || "value"}</td>
              <td class="mono">{text(each.a)}</td>
              <td class="mono">{text(each.b)}</td>
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
