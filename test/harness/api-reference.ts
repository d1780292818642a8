import type { Handlers } from '../../src/app/handlers'
import { describeApi } from '../../src/app/openapi'
import { createRoutes } from '../../src/app/routes'
import { parseConfig } from '../../src/config/merchants'
import * as ProblemMeaning from '../../src/protocol/ProblemMeaning'
import { payout } from './config'

/** An endpoint as docs/api.md describes it. */
type Endpoint = { path: string; methods: string; request: string; answer: string }

const endpoints: Readonly<Record<string, readonly Endpoint[]>> = {
  'For sale': [
    {
      path: '/m/*',
      methods: 'GET, POST',
      request: 'a route of a merchant: `/m/{merchant}{path}`; each route has its own methods',
      answer: '402 with the offers, then the answer of the upstream: [buy.md](buy.md)',
    },
    {
      path: '/mcp',
      methods: 'POST',
      request: 'a JSON-RPC message of MCP: [machines.md](machines.md)',
      answer: 'JSON-RPC',
    },
    {
      path: '/api/payments/:id',
      methods: 'GET',
      request:
        'the headers `Payment-Id` and `Payment-Token` of a stream that was paid by use, or `refund` of a problem',
      answer:
        'what it cost and its receipt: [pricing.md](pricing.md); `refund`: [refunds.md](refunds.md)',
    },
  ],
  Facilitator: [
    { path: '/supported', methods: 'GET', request: '', answer: 'networks, schemes and relayers' },
    {
      path: '/verify',
      methods: 'POST',
      request: 'x402 payload and requirements of version 2 or 1',
      answer: '`isValid` and `payer`, or `invalidReason` and `invalidMessage`',
    },
    {
      path: '/settle',
      methods: 'POST',
      request: 'the same; `Idempotency-Key` with an API key',
      answer: '`success`, `transaction`, or `errorReason`: [facilitator.md](facilitator.md)',
    },
  ],
  Documents: [
    { path: '/openapi.json', methods: 'GET', request: '', answer: 'OpenAPI of all that is sold' },
    {
      path: '/api/openapi.json',
      methods: 'GET',
      request: '',
      answer: 'OpenAPI of the endpoints of this page',
    },
    {
      path: '/.well-known/x402',
      methods: 'GET',
      request: '',
      answer: 'what is sold, for indexers',
    },
    { path: '/llms.txt', methods: 'GET', request: '', answer: 'what is sold, as text' },
    {
      path: '/discovery/resources',
      methods: 'GET',
      request: 'a page of the list',
      answer: 'resources of x402 v2 section 8',
    },
  ],
  'Stock desk and sponsor': [
    {
      path: '/api/stock/list',
      methods: 'GET',
      request: '',
      answer: 'tokens with price, limits and status',
    },
    { path: '/api/stock/quote', methods: 'GET', request: 'a purchase', answer: 'its result now' },
    {
      path: '/api/stock/buy',
      methods: 'POST',
      request: 'the same with a payment',
      answer: '402, then the order: [stocks.md](stocks.md)',
    },
    {
      path: '/api/stock/orders',
      methods: 'GET',
      request: 'a payer',
      answer: 'its orders, newest first',
    },
    { path: '/api/stock/order/:id', methods: 'GET', request: '', answer: 'one order' },
    {
      path: '/api/gas/sponsor',
      methods: 'POST',
      request: 'an address without native coin',
      answer: 'a grant: [gasless-wallets.md](gasless-wallets.md)',
    },
  ],
  'Pages for people': [
    { path: '/', methods: 'GET', request: '`q`, `page`', answer: 'the catalogue' },
    {
      path: '/merchants/:slug',
      methods: 'GET',
      request: '`route`; `method`, `body` and `p.{parameter}` of a request to show; `q`, `page`',
      answer: 'a merchant, and one of its routes: [pages.md](pages.md)',
    },
    { path: '/stocks', methods: 'GET', request: '`symbol`', answer: 'the stock tokens' },
    {
      path: '/orders/:id',
      methods: 'GET',
      request: '',
      answer: 'one order; the JSON of the API to clients that do not accept HTML',
    },
    {
      path: '/problems',
      methods: 'GET',
      request: '',
      answer: 'every code of a problem; text to clients that do not accept HTML',
    },
    {
      path: '/problems/:code',
      methods: 'GET',
      request: '',
      answer: 'what a code means, and what to do next',
    },
    {
      path: '/assets/:name',
      methods: 'GET',
      request: '',
      answer: 'scripts, style and logo of the pages',
    },
    {
      path: '/robots.txt',
      methods: 'GET',
      request: '',
      answer: 'what crawlers may read: the pages and documents, and nothing that is sold',
    },
    {
      path: '/sitemap.xml',
      methods: 'GET',
      request: '',
      answer: 'the pages: catalogue, merchants, stocks and problems',
    },
    { path: '/favicon.svg', methods: 'GET', request: '', answer: 'the icon' },
  ],
  'Pages of the operator': [
    {
      path: '/admin',
      methods: 'GET, POST',
      request: '`ADMIN_TOKEN`: in the form for a session, or as a Bearer token',
      answer: 'the overview: [operate.md](operate.md#the-page-admin)',
    },
    {
      path: '/admin/sales',
      methods: 'GET',
      request: '`from`, `to`, `by`: `merchant`, `route`, `payer`, `network` or `day`',
      answer: 'what was earned in a period',
    },
    {
      path: '/admin/funnel',
      methods: 'GET',
      request: '`from`, `to`, `by`: `route`, `merchant`, `client` or `day`',
      answer: 'what became of the visitors of a period',
    },
    {
      path: '/admin/payments',
      methods: 'GET',
      request: '`q`, `merchant`, `route`, `state`, `before`',
      answer: 'payments, the newest first',
    },
    {
      path: '/admin/payments.csv',
      methods: 'GET',
      request: 'the same',
      answer: 'up to 1,000 of them as CSV',
    },
    { path: '/admin/payments/:id', methods: 'GET', request: '', answer: 'one payment' },
    { path: '/admin/refunds', methods: 'GET', request: '', answer: 'the newest refunds' },
    { path: '/admin/orders', methods: 'GET', request: '`before`', answer: 'stock orders' },
    { path: '/admin/merchants', methods: 'GET', request: '', answer: 'merchants with figures' },
    { path: '/admin/networks', methods: 'GET', request: '', answer: 'relayers, fees, budgets' },
    { path: '/admin/channels', methods: 'GET', request: '`before`', answer: 'payment channels' },
    { path: '/admin/grants', methods: 'GET', request: '', answer: 'grants of the sponsor' },
    { path: '/admin/facilitator', methods: 'GET', request: '', answer: 'settlements by payee' },
    { path: '/admin/webhooks', methods: 'GET', request: '', answer: 'endpoints and messages' },
    {
      path: '/admin/configuration',
      methods: 'GET',
      request: '',
      answer: 'what is in force, without secrets',
    },
    {
      path: '/admin/actions/:action',
      methods: 'GET, POST',
      request:
        '`pause`, `resume`, `retry`, `test`, `resend`, `reload`, `backup`, `refund` or `claim`; POST from its page only',
      answer: 'the page that confirms it, then 303',
    },
    {
      path: '/admin/sign-out',
      methods: 'POST',
      request: 'the form of a page',
      answer: '303 to `/admin`',
    },
  ],
  Operation: [
    {
      path: '/healthz',
      methods: 'GET',
      request: '',
      answer: '200 as soon as one network can settle, else 503',
    },
    {
      path: '/readyz',
      methods: 'GET',
      request: '',
      answer: '200 when all works, else 503 with what does not',
    },
    { path: '/metrics', methods: 'GET', request: '', answer: 'metrics: [metrics.md](metrics.md)' },
  ],
}

/** Path and methods of every endpoint of the page. */
export const documented = Object.values(endpoints)
  .flat()
  .map(({ path, methods }) => ({ path, methods }))

/** Handlers of which only some exist; the others do nothing. */
export function handlersWith(some: object): Handlers {
  const any: unknown = new Proxy(() => undefined, { get: () => any, apply: () => any })
  const handlers = {
    middleware: { wrapRoutes: (next: unknown) => next },
    errors: { baseUrl: '', requestId: () => '', log: any },
    facilitatorAt: [''],
    stockAt: [''],
    ...some,
  }
  return new Proxy(handlers, {
    get: (target, name) => Reflect.get(target, name) ?? any,
  }) as unknown as Handlers
}

/** Every path of src/app/routes.ts, without the repetitions that end with a slash. */
export function routedPaths(): string[] {
  const paths = new Set(createRoutes(handlersWith({})).routes.map(({ path }) => path))
  return [...paths].filter((path) => path === '/' || !path.endsWith('/'))
}

type Schema = {
  type?: string
  const?: unknown
  pattern?: string
  description?: string
  required?: readonly string[]
  properties?: Readonly<Record<string, Schema>>
  anyOf?: readonly Schema[]
}
type Parameter = {
  name: string
  in: string
  required: boolean
  description?: string
  schema: Schema
}
type Operation = {
  parameters: readonly Parameter[]
  requestBody?: { content: Readonly<Record<string, { schema: Schema }>> }
}
type Described = { paths: Readonly<Record<string, { get?: Operation; post?: Operation }>> }

/** Rows of the members that a request may have, from the schemas that check it. */
function members(document: Described): string[] {
  return Object.entries(document.paths).flatMap(([path, { get, post }]) => {
    const operation = get ?? post
    const parameters = (operation?.parameters ?? []).map(({ name, required, ...rest }) =>
      row([`\`${path}\``, `\`${name}\``, rest.in, required, rest.description, rest.schema]),
    )
    const [body] = Object.values(operation?.requestBody?.content ?? {})
    return [...parameters, ...bodyRows(path, body?.schema ?? {}, '')]
  })
}

function bodyRows(path: string, schema: Schema, prefix: string): string[] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, member]) => {
    const required = schema.required?.includes(name) === true
    const full = `${prefix}${name}`
    return [
      row([`\`${path}\``, `\`${full}\``, 'body', required, member.description, member]),
      ...bodyRows(path, member, `${full}.`),
    ]
  })
}

function row(
  cells: readonly [string, string, string, boolean, string | undefined, Schema],
): string {
  const [path, name, place, required, description = '', schema] = cells
  return line([path, name, place, required ? 'yes' : '', typeOf(schema), description])
}

function typeOf({ type, const: value, anyOf, pattern }: Schema): string {
  if (value !== undefined) return code(JSON.stringify(value))
  if (anyOf !== undefined) return anyOf.map(typeOf).join(' or ')
  return pattern === undefined ? (type ?? '') : `${type}, ${code(pattern)}`
}

function code(text: string): string {
  return `\`${text.replaceAll('|', '\\|')}\``
}

/** A row of a Markdown table. */
export function line(cells: readonly string[]): string {
  return `| ${cells.join(' | ')} |`
}

function table(head: readonly string[], rows: readonly string[]): string {
  return [line(head), line(head.map(() => '---')), ...rows].join('\n')
}

/** The text of docs/api.md; `shipped`: the text of merchants.toml. */
export function renderApi(shipped: string): string {
  const { config } = parseConfig(shipped, { file: 'merchants.toml', env: { PAYOUT: payout } })
  if (config === undefined) throw new Error('merchants.toml has faults')
  const sections = Object.entries(endpoints).map(([title, rows]) => {
    const cells = rows.map(({ path, methods, request, answer }) =>
      line([code(path), methods, request, answer]),
    )
    return `### ${title}\n\n${table(['path', 'methods', 'request', 'answer'], cells)}`
  })
  const problems = ProblemMeaning.all().map(({ code: name, status, ...each }) =>
    line([code(name), String(status), each.retryable ? 'yes' : '', each.meaning, each.client]),
  )
  const described = describeApi(config) as Described
  return `# API

With this page you can call every endpoint of a gateway, and find what a problem
means. It is written by \`bun run docs\` from \`src/app/routes.ts\`, the schemas that check the requests and
\`src/protocol/ProblemMeaning.ts\`.

## Endpoints

Each path answers OPTIONS, and HEAD where it answers GET. Another method is 405. \`facilitator_url\` and
\`stock_base_url\` can move the facilitator, the stock desk and the sponsor below another path; the paths
here answer, too.

${sections.join('\n\n')}

## Members of requests

${table(['path', 'member', 'in', 'required', 'type', 'meaning'], members(described))}

## Problems

An error is \`application/problem+json\` (RFC 9457) with \`type\`, \`title\`, \`status\`, \`detail\`, \`code\` and
often further members. The \`type\` of the codes of the MPP draft begins with
\`https://paymentauth.org/problems/\`, that of all others with \`/problems/\` below \`base_url\`. "Again" means
that the same request may succeed later; \`Retry-After\` says when.

${table(['code', 'status', 'again', 'meaning', 'what the client does'], problems)}

The member \`reason\` of a problem, \`invalidReason\` of \`/verify\` and \`errorReason\` of \`/settle\` have a
code of x402: [troubleshooting.md](troubleshooting.md#reason-codes) lists all of them.

## Errors of \`/mcp\`

${table(
  ['code', 'meaning'],
  [
    line(['`-32042`', 'payment required, for a client that declares MPP; `data` has the offers']),
    line(['`-32043`', 'the credential was refused; `data` has fresh challenges']),
    line(['`-32602`', 'the arguments or the payment cannot be read']),
    line(['`-32601`', 'no such method']),
    line(['`-32600`, `-32700`', 'no JSON-RPC message, or too large']),
    line(['`-32000`', 'refused before the message was read: origin, rate, size or method']),
    line(['`-32603`', 'the service failed']),
  ],
)}
`
}
