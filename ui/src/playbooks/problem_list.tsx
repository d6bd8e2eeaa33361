/** The diagnostics of a playbook, as a list of links to their positions. */
import type { Diagnostic } from "../common/api";

/** Text in which `backticks` are rendered as code. */
export function Prose({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}

interface ProblemListProps {
  found: Diagnostic[];
  docs: string;
  onGo: (line: number, column: number) => void;
  onExplain: (code: string) => void;
}

/** Whether a click is handled by the page: with a modifier key it is an ordinary link. */
export const stays = (event: MouseEvent) => !(event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);

export function ProblemList({ found, docs, onGo, onExplain }: ProblemListProps) {
  if (!found.length) {
    return (
      <p class="all-well">
        <span class="status ok">
          <i aria-hidden="true" />
          No problems
        </span>
      </p>
    );
  }
  return (
    <ul class="findings">
      {found.map((each, index) => (
        <li key={index} class={each.severity}>
          <button type="button" class="where number" onClick={() => onGo(each.line, each.column)} aria-label={`${each.line}:${each.column}, go to position`}>
            {each.line}:{each.column}
          </button>
          <div>
            <span class="unseen">{each.severity}: </span>
            <Prose text={each.message} />{" "}
            <a
              href={docs + each.code}
              target="_blank"
              rel="noreferrer"
              class="code"
              title="Explanation with examples"
              onClick={(event) => {
                if (!stays(event)) return;
                event.preventDefault();
                onExplain(each.code);
              }}
            >
              {each.code}
            </a>
            {each.hint && (
              <div class="hint">
                <Prose text={each.hint} />
              </div>
            )}
          </div>
        </li>
      ))}
    </ul>
  );
}

/** "2 errors, 1 warning" or "no problems". */
export function counted(found: Diagnostic[]): string {
  const errors = found.filter((each) => each.severity === "error").length;
  const warnings = found.length - errors;
  const say = (count: number, word: string) => (count ? [`${count} ${word}${count > 1 ? "s" : ""}`] : []);
  return [...say(errors, "error"), ...say(warnings, "warning")].join(", ") || "no problems";
}
