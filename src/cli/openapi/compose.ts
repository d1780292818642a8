import type { Config } from '../../config/Config'
import * as Headers from '../../config/headers'
import { parseConfig } from '../../config/merchants'
import { isWrong } from '../../config/reader'
import * as V from '../../config/values'
import { exampleUrl } from '../../gateway/documents/Catalogue'
import type { Context } from '../Command'
import type { Document } from './document'
import * as Operation from './Operation'
import * as Toml from './Toml'
import { brief, type Table } from './Value'

/** The part of a file that sells the operations of a specification. */

/** A price for the operations that a pattern fits. */
export type Rule = { pattern: string; price: string }

/** Reads `PATTERN=PRICE`, several with commas between them; a text is what is wrong. */
export function readRules(text: string): Rule[] | string {
  const rules: Rule[] = []
  for (const part of text.split(/,(?=[^=]*=)/)) {
    const at = part.lastIndexOf('=')
    const [pattern, price] = [part.slice(0, at).trim(), part.slice(at + 1).trim()]
    if (at < 1) return `must be PATTERN=PRICE, such as "GET /reports/*=0.05" (found "${part}")`
    const read = V.price(price)
    if (isWrong(read)) return `${read.wrong} (found "${part}")`
    rules.push({ pattern, price })
  }
  return rules
}

/** Whether a pattern fits the id, the path, or the method and path; `*` is any text. */
function isFor({ pattern }: Rule, { key, id }: Operation.Operation): boolean {
  const parts = pattern.split('*').map((part) => part.replace(/[\\^$.|?+()[\]{}]/g, '\\$&'))
  const expression = new RegExp(`^${parts.join('.*')}$`)
  return [key, key.slice(key.indexOf(' ') + 1), id].some((text) => expression.test(text))
}

/**
 * URL of the API of a specification. `isTrusted`: what a stranger wrote into it cannot lead to the
 * operator's own network.
 */
export function upstreamOf({
  root,
  url,
}: Document): { upstream: string; isTrusted: boolean } | undefined {
  const found = URL.parse(Operation.serverOf(root) ?? '/', url?.href)
  if (found === null || !/^https?:$/.test(found.protocol)) return undefined
  // A host may have `${name}`, which the file would replace.
  if (found.host.includes('$')) return undefined
  const isPublic = found.protocol === 'https:' && !V.isPrivate(found)
  const upstream = found.origin + found.pathname.replace(/\/+$/, '')
  return { upstream, isTrusted: isPublic || found.origin === url?.origin }
}

export function titleOf({ root }: Document): string | undefined {
  const { title } = (root.info ?? {}) as Table
  return typeof title === 'string' ? Toml.plain(brief(title, 80)) || undefined : undefined
}

type Sale = {
  document: Document
  slug: string
  /** URL of the API, which gets the secrets. */
  upstream: string
  price: string
  rules: readonly Rule[]
  /** Lines of the file before the merchant, for the lowest price. */
  head: (lowest: string) => readonly string[]
  /** Lines of the merchant besides its own. */
  more: readonly string[]
  env: Context['env']
}

type Imported = {
  text: string
  sold: readonly Operation.Operation[]
  leftOut: readonly Operation.LeftOut[]
  /** Arguments of curl that ask for the price of a route. */
  asking: string
  /** Patterns that fit no operation. */
  unused: readonly string[]
  /** Of the parts of the file that are not routes. */
  faults: readonly string[]
}

/** The text of a file without faults; routes that have one are left out. */
export function compose(sale: Sale): Imported {
  const { document, rules, env } = sale
  const listing = Operation.list(document, sale.slug, sale.upstream)
  let { operations, leftOut } = listing
  const unused = rules.filter((rule) => !operations.some((each) => isFor(rule, each)))
  for (;;) {
    const { lines, routes } = linesOf(sale, { ...listing, operations })
    const text = `${lines.join('\n')}\n`
    const { config, faults } = parseConfig(text, { file: 'merchants.toml', env })
    const wrong = new Map<Operation.Operation, string>()
    const others: string[] = []
    for (const { line, message } of faults) {
      const at = routes.findLastIndex((start) => start <= line)
      const operation = operations[at]
      if (operation === undefined) others.push(message)
      else wrong.set(operation, message)
    }
    if (wrong.size === 0 || others.length > 0)
      return {
        text,
        sold: operations,
        leftOut,
        asking: askingOf(config),
        unused: unused.map((rule) => rule.pattern),
        faults: others,
      }
    operations = operations.filter((each) => !wrong.has(each))
    leftOut = [
      ...leftOut,
      ...[...wrong].map(([{ key }, reason]) => ({ key, reason: brief(reason, 300) })),
    ]
  }
}

function askingOf(config: Config | undefined): string {
  const [merchant] = config?.merchants ?? []
  const asked = merchant?.routes.find(({ methods }) => methods[0] === 'GET') ?? merchant?.routes[0]
  if (config === undefined || merchant === undefined || asked === undefined) return ''
  const [method] = asked.methods
  const { href } = new URL(exampleUrl(config.service.baseUrl, merchant, asked))
  // A person copies it into a shell, and a stranger chose parts of it.
  const url = /^[\w.:/~%-]+$/.test(href) ? href : `'${href.replaceAll("'", '%27')}'`
  return method === 'GET' ? url : `-X ${method} ${url}`
}

/** The lines of the file, and the first line of each route. */
function linesOf(sale: Sale, listing: Operation.Listing): { lines: string[]; routes: number[] } {
  const { slug, price, rules, head, more } = sale
  const priceOf = (operation: Operation.Operation) =>
    rules.findLast((rule) => isFor(rule, operation))?.price ?? price
  const prices = [...new Set([price, ...listing.operations.map(priceOf)])]
  const lowest = prices.reduce((least, each) => (Number(each) < Number(least) ? each : least))
  const lines = [
    ...head(lowest),
    '[[merchants]]',
    `slug = ${Toml.quoted(slug)}  # buyers ask below /m/${slug}`,
    ...filled({ title: listing.title, description: listing.description }),
    ...more,
    ...headersOf(listing),
  ]
  const routes = listing.operations.map((operation) => {
    lines.push('')
    const start = lines.length + 1
    lines.push(...routeOf(operation, priceOf(operation)))
    return start
  })
  return { lines, routes }
}

/** What the upstream wants of each request. The file takes the values from the environment. */
function headersOf({ secrets, otherSchemes, headers }: Operation.Listing): string[] {
  const isHeader = ({ in: place, name }: Operation.Secret) =>
    place === 'header' && Headers.requestNameFault(name) === undefined
  const own = secrets.filter(isHeader)
  const live = own.map(
    ({ name, value, hint }) => `${Toml.key(name)} = ${Toml.quoted(value)}  # ${hint}`,
  )
  const others = otherSchemes.map((text) => `# or: ${brief(text, 120)}`)
  const wanted = headers.map(({ name, value }) => {
    return `# ${Toml.key(name)} = ${Toml.text(brief(value, 60))}  # some operations need it`
  })
  const lines = [...live, ...others, ...wanted]
  if (lines.length === 0) return []
  return [`${live.length === 0 ? '# ' : ''}[merchants.headers]`, ...lines]
}

function routeOf(operation: Operation.Operation, price: string): string[] {
  const { key, notes, path, method, upstreamPath, upstream, params, fixedQuery } = operation
  const { summary, description, body, bodyRequired, answer } = operation
  const secrets = Object.entries(fixedQuery).map(
    ([name, value]) => `${Toml.key(name)} = ${Toml.quoted(value)}`,
  )
  const hasTail = params.some((param) => param.in === 'tail')
  const own = { summary, description: description === summary ? '' : description }
  return [
    `# ${[key, ...notes].join('; ')}`,
    '[[merchants.routes]]',
    ...filled({ path, methods: [method], price, ...own, upstream, upstream_path: upstreamPath }),
    `tail = "${hasTail ? 'exact' : 'none'}"`,
    ...(secrets.length === 0 ? [] : [`fixed_query = { ${secrets.join(', ')} }`]),
    ...filled({ body_required: bodyRequired || undefined, answer }),
    ...params.flatMap(({ name, in: place, required, schema, ...more }) => {
      const { description: said, example } = more
      const isPlain = Object.keys(schema).length === 1 && schema.type === 'string'
      return [
        '[[merchants.routes.params]]',
        ...filled({ name, in: place === 'tail' ? place : undefined }),
        ...filled({ required: (required && place === 'query') || undefined, description: said }),
        ...filled({ schema: isPlain ? undefined : schema, example }),
      ]
    }),
    ...bodyOf(body),
  ]
}

function bodyOf(body: Table | undefined): string[] {
  if (body === undefined || Object.keys(body).length === 0) return []
  const { properties, ...rest } = body
  const members = filled((properties ?? {}) as Table)
  return [
    '[merchants.routes.body]',
    ...filled(rest),
    ...(members.length === 0 ? [] : ['[merchants.routes.body.properties]', ...members]),
  ]
}

/** A line for each value that there is. */
function filled(values: Table): string[] {
  return Object.entries(values).flatMap(([name, value]) => {
    const written = value === '' || value === undefined ? undefined : Toml.of(value)
    return written === undefined ? [] : [`${Toml.key(name)} = ${written}`]
  })
}
