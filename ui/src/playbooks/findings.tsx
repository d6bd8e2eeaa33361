/** What the validator says about a text, as a list that leads to each place. */
import type { Diagnostic } from "../frame/api";

/** Text with `words in backticks` set as code. */
export function Prose({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}

interface FindingsProps {
  found: Diagnostic[];
  docs: string;
  onGo: (line: number, column: number) => void;
  onExplain: (code: string) => void;
}

/** Whether a click on a link stays in this page: with a modifier key it is an ordinary link. */
export const stays = (event: MouseEvent) => !(event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);

export function Findings({ found, docs, onGo, onExplain }: FindingsProps) {
  if (!found.length) {
    return (
      <p class="all-well">
        <span class="status ok">
          <i aria-hidden="true" />
          Nothing to complain about
        </span>
      </p>
    );
  }
  return (
    <ul class="findings">
      {found.map((each, index) => (
        <li key={index} class={each.severity}>
          <button type="button" class="where number" onClick={() => onGo(each.line, each.column)} aria-label={`${each.line}:${each.column}, go to this place`}>
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
              title="Why this is told, with a wrong and a right example"
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

/** "2 errors, 1 warning", or that all is well. */
export function counted(found: Diagnostic[]): string {
  const errors = found.filter((each) => each.severity === "error").length;
  const warnings = found.length - errors;
  const say = (count: number, word: string) => (count ? [`${count} ${word}${count > 1 ? "s" : ""}`] : []);
  return [...say(errors, "error"), ...say(warnings, "warning")].join(", ") || "no problems";
}
