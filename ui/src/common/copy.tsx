/** Buttons that copy a text: ids, links, commands. */
import { notify } from "./components";

export async function copyText(text: string, what: string) {
  try {
    await navigator.clipboard.writeText(text);
    notify(`Copied ${what}`);
  } catch {
    notify(`The browser does not permit copying. The text is: ${text}`, { bad: true });
  }
}

/** A small button that copies a text; `what` names it. */
export function Copy({ text, what }: { text: string; what: string }) {
  return (
    <button type="button" class="copy" title={`Copy ${what}`} aria-label={`Copy ${what}`} onClick={() => copyText(text, what)}>
      <svg viewBox="0 0 16 16" width="13" height="13" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round" aria-hidden="true">
        <rect x="5.5" y="5.5" width="8" height="8" rx="1.5" />
        <path d="M10.5 5.5v-2a1 1 0 0 0-1-1h-6a1 1 0 0 0-1 1v6a1 1 0 0 0 1 1h2" />
      </svg>
    </button>
  );
}
