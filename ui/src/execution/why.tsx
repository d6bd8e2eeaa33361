/** Explanation of the current status: findings of the server, and the path of its tokens. */
import { useState } from "preact/hooks";
import { ErrorState, Loading } from "../common/components";
import { duration, useNow } from "../common/times";
import type { Snapshot, Explanation, Finding } from "./snapshot";

const FEW = 5;
const MAX_PATH_LINES = 200;

interface Props {
  requested: Snapshot<Explanation>;
  /** The instant that is shown, in ms; null: now. */
  now: number | null;
  failed: boolean;
  onSelect: (step: string) => void;
  onSeq: (seq: number) => void;
}

export function Why({ requested, now, failed, onSelect, onSeq }: Props) {
  const clock = useNow(now === null);
  const [all, setAll] = useState(false);
  const { value, problem, stale } = requested;
  if (problem && !value) return <ErrorState problem={problem} />;
  if (!value) return <Loading what="Loading explanation" />;
  const over = value.findings[0]?.subject === "end";
  const reasons = over && value.because?.length ? value.because : null;
  const way = value.way ?? [];
  return (
    <div class={stale ? "stale" : ""}>
      {reasons ? (
        <div class={failed ? "error-box why-end" : "why-end"}>
          {reasons.map((words) => (
            <p key={words}>{words}</p>
          ))}
        </div>
      ) : (
        <ul class="why">
          {value.findings.slice(0, all ? undefined : FEW).map((finding, index) => (
            <FindingView key={index} finding={finding} at={now ?? clock} onSelect={onSelect} />
          ))}
          {!all && value.findings.length > FEW && (
            <li>
              <button type="button" class="link" onClick={() => setAll(true)}>
                and {(value.findings.length - FEW).toLocaleString()} more
              </button>
            </li>
          )}
        </ul>
      )}
      {way.length > 0 && (
        <details class="way">
          <summary>Path of the tokens</summary>
          <ol>
            {way.slice(-MAX_PATH_LINES).map((line) => (
              <Way key={line} line={line} onSeq={onSeq} />
            ))}
          </ol>
        </details>
      )}
    </div>
  );
}

function FindingView({ finding, at, onSelect }: { finding: Finding; at: number; onSelect: (step: string) => void }) {
  return (
    <li>
      <p>{finding.text}</p>
      {finding.step && finding.subject !== "end" && (
        <p class="quiet">
          <button type="button" class="link" onClick={() => onSelect(finding.step!)}>
            {finding.step}
          </button>
          {finding.since ? <span> for {duration(Math.max(0, at - finding.since * 1000))}</span> : null}
          {finding.due ? <span> due in {duration(Math.max(0, finding.due * 1000 - at))}</span> : null}
        </p>
      )}
    </li>
  );
}

/** A line `seq: text`; the number is a link to that event. */
function Way({ line, onSeq }: { line: string; onSeq: (seq: number) => void }) {
  const [, seq, words] = /^(\d+): ([^]*)$/.exec(line) ?? [null, null, line];
  return (
    <li>
      {seq && (
        <button type="button" class="link number" onClick={() => onSeq(Number(seq))} title="Go to this event">
          {seq}
        </button>
      )}{" "}
      {words}
    </li>
  );
}
