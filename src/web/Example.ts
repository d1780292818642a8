import type { Method, NetworkConfig, Param, Route } from '../config/Config'

/** An example request of a route. */
export type Example = {
  method: Method
  /** Absolute path and query, encoded. */
  target: string
  /** JSON text, for methods with a body. */
  body: string | undefined
}

/** A call of a route with the examples of its parameters. */
export function from(slug: string, route: Route): Example {
  const method = route.methods[0] ?? 'GET'
  const tail = route.params.filter((param) => param.in === 'tail')
  const segments = tail.slice(0, tail.findLastIndex(isWanted) + 1).map(segmentOf)
  const pairs = route.params
    .filter((param) => param.in === 'query' && isWanted(param))
    .map((param) => `${encode(param.name)}=${encode(String(exampleOf(param)))}`)
  const query = pairs.length === 0 ? '' : `?${pairs.join('&')}`
  const path = `/m/${slug}${route.path}${segments.map((segment) => `/${segment}`).join('')}`
  const takesBody = method === 'POST' || method === 'PUT' || method === 'PATCH'
  const body = takesBody ? JSON.stringify(bodyOf(route.body)) : undefined
  return { method, target: path + query, body }
}

function isWanted(param: Param): boolean {
  return param.required || param.example !== undefined
}

/** A tail parameter may have fixed text around its value: `{cik}.json`. */
function segmentOf(param: Param): string {
  const [, prefix = '', inner, suffix = ''] = /^(.*)\{([^{}]+)\}(.*)$/.exec(param.name) ?? []
  const value = encode(String(exampleOf(param)))
  return inner === undefined ? value : prefix + value + suffix
}

function exampleOf(param: Param): unknown {
  const { schema, example } = param
  if (typeof schema.const === 'string') return schema.const
  if (example !== undefined) return example
  return sampleOf(schema)
}

function bodyOf(schema: Route['body']): unknown {
  const properties = isObject(schema?.properties) ? schema.properties : {}
  const entries = Object.entries(properties).flatMap(([name, inner]) => {
    if (!isObject(inner)) return []
    const isRequired = Array.isArray(schema?.required) && schema.required.includes(name)
    const hasExample = inner.example !== undefined || Array.isArray(inner.examples)
    return isRequired || hasExample ? [[name, sampleOf(inner)]] : []
  })
  return Object.fromEntries(entries)
}

/** An example value from a schema. */
function sampleOf(schema: Readonly<Record<string, unknown>>): unknown {
  const { examples, example, minimum } = schema
  if (example !== undefined) return example
  for (const list of [examples, schema.enum])
    if (Array.isArray(list) && list.length > 0) return list[0]
  if (schema.default !== undefined) return schema.default
  switch (schema.type) {
    case 'integer':
    case 'number':
      return typeof minimum === 'number' ? Math.max(minimum, 1) : 1
    case 'boolean':
      return true
    case 'array':
      return []
    case 'object':
      return {}
    default:
      return 'example'
  }
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Encodes a text except for characters that a path segment and a query may contain unencoded. */
function encode(text: string): string {
  return encodeURIComponent(text).replace(/%(?:2C|3A|40)/g, decodeURIComponent)
}

/** Shell commands and a program that make the call, to copy. */
export type Command = { name: string; note: string; text: string }

/**
 * The call with common tools: without payment, and with stock clients. `network` is the one on
 * which the program pays.
 */
export function commands(
  { method, target, body }: Example,
  options: { baseUrl: string; network: NetworkConfig | undefined; priceAtomic: bigint },
): Command[] {
  const url = options.baseUrl + target
  const quoted = quote(url)
  const json = body === undefined ? '' : ` -H 'Content-Type: application/json' -d ${quote(body)}`
  const verb = method === 'GET' || (method === 'POST' && body !== undefined) ? '' : ` -X ${method}`
  const list: Command[] = [
    { name: 'curl', note: 'asks for the price', text: `curl -i${verb}${json} ${quoted}` },
    {
      name: 'mppx',
      note: 'pays by MPP; PAY_KEY holds a private key',
      text: `MPPX_PRIVATE_KEY="$PAY_KEY" npx mppx ${quoted} --protocol mpp${
        body === undefined ? verb : ` -J ${quote(body)}`
      }`,
    },
  ]
  if (options.network === undefined) return list
  const { network, priceAtomic } = options
  const text = program(fetchOf(url, { method, body }), network, priceAtomic)
  const note = `pays by x402 on ${network.name}; npm install @x402/fetch @x402/evm viem`
  return [...list, { name: '@x402/fetch', note, text }]
}

/** The arguments of `fetch`. */
function fetchOf(url: string, { method, body }: Pick<Example, 'method' | 'body'>): string {
  if (method === 'GET') return literal(url)
  if (body === undefined) return `${literal(url)}, { method: '${method}' }`
  return `${literal(url)}, {
  method: '${method}',
  headers: { 'content-type': 'application/json' },
  body: ${literal(body)},
}`
}

function program(request: string, { id, asset }: NetworkConfig, priceAtomic: bigint): string {
  return [
    "import { wrapFetchWithPayment, x402Client } from '@x402/fetch'",
    "import { ExactEvmScheme } from '@x402/evm/exact/client'",
    "import { privateKeyToAccount } from 'viem/accounts'",
    '',
    'const client = new x402Client()',
    `  .register('${id}', new ExactEvmScheme(privateKeyToAccount(process.env.PAY_KEY)))`,
    '  .setSpendControls({',
    '    allowedAssets: [',
    `      { network: '${id}', asset: '${asset.address}', maxAmountPerPayment: '${priceAtomic}' },`,
    '    ],',
    '  })',
    'const pay = wrapFetchWithPayment(fetch, client)',
    `const answer = await pay(${request})`,
    'console.log(await answer.text())',
  ].join('\n')
}

/** For a POSIX shell. */
function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}

/** A string of JavaScript. */
function literal(text: string): string {
  return `'${JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`
}
