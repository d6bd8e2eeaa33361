/** Labels in a text field: `team=data, owner=ada`. */

export const writeLabels = (labels: Record<string, string>) => Object.entries(labels).map(([key, value]) => `${key}=${value}`).join(", ");

/** The labels of a text; a string is the error. */
export function readLabels(text: string): Record<string, string> | string {
  const labels: Record<string, string> = {};
  for (const each of text.split(",").map((part) => part.trim()).filter(Boolean)) {
    const at = each.indexOf("=");
    if (at < 1) return `${each} is not NAME=VALUE.`;
    labels[each.slice(0, at).trim()] = each.slice(at + 1).trim();
  }
  return labels;
}
