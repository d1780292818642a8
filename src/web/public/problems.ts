import type { Config } from '../../config/Config'
import * as Problem from '../../protocol/Problem'
import { all, type Meaning, meaningOf } from '../../protocol/ProblemMeaning'
import { type Html, html } from '../html'
import { send, sendPage } from './layout'

/**
 * The pages that the types of problems name: `/problems` lists all codes, `/problems/{code}` says
 * what one means and what to do next. Browsers get HTML, every other client plain text.
 */
export function createProblemPages(config: Config) {
  const answer = (request: Request, title: string, page: { main: Html; text: string }) => {
    const vary = { vary: 'Accept' }
    const type = { 'content-type': 'text/plain; charset=utf-8' }
    if (!wantsHtml(request)) return send(request, page.text, { headers: { ...vary, ...type } })
    const { main } = page
    return sendPage(config, request, { title, path: '/problems', main }, { headers: vary })
  }
  return {
    list: (request: Request): Response =>
      answer(request, 'Problems', { main: listOf(all()), text: textOfList(config, all()) }),
    one(request: Request, { code = '' }: { code?: string }): Response {
      const meaning = meaningOf(code)
      if (meaning === undefined)
        throw Problem.of('not-found', 'There is no problem of this code; /problems lists all.')
      return answer(request, meaning.title, { main: pageOf(meaning), text: textOf(meaning) })
    },
  }
}

/** Whether a client reads HTML: a browser that opens a page, not a program. */
export function wantsHtml(request: Request): boolean {
  return /\btext\/html\b/i.test(request.headers.get('accept') ?? '')
}

function pageOf({ code, title, status, meaning, client, operator }: Meaning): Html {
  return html`<h1>${title}</h1>
<p class="quiet"><code>${code}</code>, HTTP status ${status}</p>
<h2>What it means</h2>
<p>${marked(meaning)}</p>
<h2>What to do next</h2>
<p>${marked(client)}</p>
${
  operator !== undefined &&
  html`<details><summary>For the operator of this service</summary>
<p>${marked(operator)}</p></details>`
}
<p><a href="/problems">All problems</a></p>`
}

function listOf(meanings: readonly Meaning[]): Html {
  return html`<h1>Problems</h1>
<p class="lead">Each page says what a problem means and what to do next. The <code>type</code> of an error answer names its page.</p>
${groups.map(
  ([name, isIn]) => html`<h2>${name}</h2>
<ul class="group">${meanings
    .filter(({ status }) => isIn(status))
    .map(
      ({ code, title, status }) =>
        html`<li><a href="/problems/${code}">${title}</a> <code>${code}</code>, HTTP status ${status}</li>
`,
    )}</ul>`,
)}`
}

/** Groups of problems by their statuses. */
const groups = [
  ['The payment', (status: number) => status === 402],
  ['The request', (status: number) => status < 500 && status !== 402],
  ['The service', (status: number) => status >= 500],
] as const

function textOf({ code, title, status, meaning, client, operator }: Meaning): string {
  const lines = [`${title} (${code}, HTTP status ${status})`, '', meaning, '', `Next: ${client}`]
  if (operator !== undefined) lines.push('', `For the operator: ${operator}`)
  return `${lines.join('\n')}\n`
}

function textOfList({ service }: Config, meanings: readonly Meaning[]): string {
  const lines = meanings.map(
    ({ code, title, status }) => `${status} ${title}: ${service.baseUrl}/problems/${code}`,
  )
  return `${lines.join('\n')}\n`
}

/** Text whose parts between backticks are code. */
function marked(text: string): Html[] {
  return text
    .split('`')
    .map((part, index) => (index % 2 === 1 ? html`<code>${part}</code>` : html`${part}`))
}
