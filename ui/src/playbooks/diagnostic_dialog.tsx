/** Dialog with the reference page of a diagnostic. */
import type { ComponentChildren } from "preact";
import { useFetch } from "../common/fetch";
import { Dialog, ErrorState, Loading } from "../common/components";
import { Prose } from "./problem_list";

interface Explanation {
  code: string;
  severity: string;
  title: string;
  text: string | null;
}

export function DiagnosticDialog({ code, docs, onClose }: { code: string; docs: string; onClose: () => void }) {
  const { value, problem, reload } = useFetch<Explanation>(`/api/diagnostics/${encodeURIComponent(code)}`);
  return (
    <Dialog title={code} onClose={onClose}>
      {problem && <ErrorState problem={problem} retry={reload} />}
      {!value && !problem && <Loading what="Loading explanation" />}
      {value && (
        <div class="explained">
          <p>
            <strong>
              <Prose text={value.title} />
            </strong>{" "}
            <span class="quiet">({value.severity})</span>
          </p>
          {blocks(value.text ?? "")}
          <p>
            <a href={docs + code} target="_blank" rel="noreferrer">
              Open the documentation
            </a>
          </p>
        </div>
      )}
    </Dialog>
  );
}

/** The paragraphs, headings and examples of a page, without its first heading and title. */
function blocks(text: string): ComponentChildren[] {
  const shown: ComponentChildren[] = [];
  const parts = text.split(/^```\w*\n([\s\S]*?)^```$/m);
  parts.forEach((part, index) => {
    if (index % 2) {
      shown.push(
        <pre key={index} tabIndex={0}>
          {part.trimEnd()}
        </pre>,
      );
      return;
    }
    for (const block of part.split(/\n{2,}/)) {
      const words = block.trim().replace(/\s*\n\s*/g, " ");
      if (!words || words.startsWith("# ") || words.startsWith("**")) continue;
      shown.push(words.startsWith("## ") ? <h3 key={`${index}${words}`}>{words.slice(3)}</h3> : <p key={`${index}${words}`}><Prose text={words} /></p>);
    }
  });
  return shown;
}
