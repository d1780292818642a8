/** Markup that is safe to send: every text in it has been escaped. */
export type Html = { readonly markup: string }

type Part = Html | string | number | false | undefined | readonly Part[]

/** Escapes text between tags or in a quoted attribute. Control characters become blanks. */
export function escaped(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is looked for
  const printable = text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, ' ')
  return Bun.escapeHTML(printable).replaceAll('&#x27;', '&#39;')
}

/**
 * A template of markup. Strings and numbers are escaped, so they may appear only between tags or in
 * double quotes. Lists are joined; undefined and false add nothing.
 */
export function html(fixed: TemplateStringsArray, ...parts: readonly Part[]): Html {
  let markup = fixed[0] ?? ''
  for (const [i, part] of parts.entries()) markup += render(part) + (fixed[i + 1] ?? '')
  return { markup }
}

function render(part: Part): string {
  if (part === undefined || part === false) return ''
  if (typeof part === 'string') return escaped(part)
  if (typeof part === 'number') return String(part)
  if ('markup' in part) return part.markup
  return part.map(render).join('')
}

/** A whole HTML document. `head`: what follows the settings of the viewport. */
export function htmlDocument(head: Html, body: Html): string {
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
${head}
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
${body}
</body>
</html>
`.markup
}

/** The links of a navigation, with a mark at the page that is shown. */
export function navigationOf(
  label: string,
  links: readonly { path: string; text: string }[],
  current: string | undefined,
): Html {
  return html`<nav aria-label="${label}"><ul>${links.map(
    ({ path, text }) =>
      html`<li><a href="${path}"${path === current && html` aria-current="page"`}>${text}</a></li>`,
  )}</ul></nav>`
}
