import type { NetworkConfig } from '../../config/Config'
import { dollars } from '../parts'
import type { Example } from './Example'

/** Shell commands and programs that make a request, to copy. */
export type Command = {
  name: string
  note: string
  text: string
  /** Whether it pays, and not only shows the price. */
  pays: boolean
}

export type Terms = {
  baseUrl: string
  /** The network on which the programs pay. */
  network: NetworkConfig | undefined
  /** The most that the programs pay. */
  priceAtomic: bigint
  /** Name of the MCP tool of the route, if there is one. */
  tool?: string | undefined
  /** Whether a program signs in before it pays, for what its wallet has at the route. */
  signsIn?: boolean
  /** Whether the price is paid before the answer, which stock clients do; true by default. */
  isExact?: boolean
  /** The deposit with which a program may open a channel. */
  depositAtomic?: bigint | undefined
}

/** What differs between two requests of a route: it decides which options a command has. */
export type Shape = Pick<Example, 'method'> & { hasBody: boolean }

/** The request with common tools: without payment, and with stock clients. */
export function of({ method, target, body }: Example, terms: Terms): Command[] {
  const values = { url: terms.baseUrl + target, body: body ?? '' }
  return templates({ method, hasBody: body !== undefined }, terms).map((each) => ({
    ...each,
    text: fill(each.text, values),
  }))
}

/**
 * Commands with marks in the places of the URL and the body, which `fill` replaces: `@@sh:url@@` by a
 * word of a POSIX shell, `@@js:url@@` by a string of JavaScript and Python.
 */
export function templates(shape: Shape, terms: Terms): Command[] {
  const { network, priceAtomic, tool, signsIn = false, isExact = true } = terms
  const { method, hasBody } = shape
  const json = hasBody ? " -H 'Content-Type: application/json' -d @@sh:body@@" : ''
  const verb = method === 'GET' || (method === 'POST' && hasBody) ? '' : ` -X ${method}`
  const list: Command[] = [
    {
      name: 'curl',
      pays: false,
      note: 'Shows the price. Nothing is paid.',
      text: `curl -i${verb}${json} @@sh:url@@`,
    },
  ]
  if (isExact)
    list.push({
      name: 'mppx',
      pays: true,
      note: 'Pays by MPP. PAY_KEY holds a private key.',
      text: `MPPX_PRIVATE_KEY="$PAY_KEY" npx mppx @@sh:url@@ --protocol mpp${
        hasBody ? ' -J @@sh:body@@' : verb
      }`,
    })
  if (isExact && network !== undefined) {
    list.push(program(shape, network, { priceAtomic, signsIn }))
    if (network.asset.transfer.includes('eip3009')) list.push(python(shape, network, priceAtomic))
  }
  if (terms.depositAtomic !== undefined)
    list.push(channel(shape, priceAtomic, dollars(terms.depositAtomic)))
  if (tool !== undefined) list.push(mcp(terms.baseUrl, priceAtomic, tool))
  return list
}

/** Replaces the marks of a template. script/compose.js does the same in the browser. */
export function fill(template: string, values: { url: string; body: string }): string {
  return template.replace(/@@(sh|js):(url|body)@@/g, (_, kind: string, name: 'url' | 'body') =>
    kind === 'sh' ? quote(values[name]) : literal(values[name]),
  )
}

function program(
  shape: Shape,
  { id, name, asset }: NetworkConfig,
  { priceAtomic, signsIn }: { priceAtomic: bigint; signsIn: boolean },
): Command {
  const lines = [
    `import { wrapFetchWithPayment, x402Client${signsIn ? ', x402HTTPClient' : ''} } from '@x402/fetch'`,
    "import { ExactEvmScheme } from '@x402/evm/exact/client'",
    ...(signsIn ? ["import { createSIWxClientHook } from '@x402/extensions/sign-in-with-x'"] : []),
    "import { privateKeyToAccount } from 'viem/accounts'",
    '',
    'const account = privateKeyToAccount(process.env.PAY_KEY)',
    'const client = new x402Client()',
    `  .register('${id}', new ExactEvmScheme(account))`,
    '  .setSpendControls({',
    '    allowedAssets: [',
    `      { network: '${id}', asset: '${asset.address}', maxAmountPerPayment: '${priceAtomic}' },`,
    '    ],',
    '  })',
    ...(signsIn
      ? [
          'const signedIn = new x402HTTPClient(client).onPaymentRequired(createSIWxClientHook(account))',
          'const pay = wrapFetchWithPayment(fetch, signedIn)',
        ]
      : ['const pay = wrapFetchWithPayment(fetch, client)']),
    `const answer = await pay(${fetchOf(shape)})`,
    'console.log(await answer.text())',
  ]
  const first = signsIn ? 'Signs in, and where that gives nothing pays' : 'Pays'
  const more = signsIn ? '@x402/extensions ' : ''
  const note = `${first} by x402 on ${name}. npm install @x402/fetch @x402/evm ${more}viem`
  return { name: '@x402/fetch', pays: true, note, text: lines.join('\n') }
}

/** The arguments of `fetch`. */
function fetchOf({ method, hasBody }: Shape): string {
  if (method === 'GET') return '@@js:url@@'
  if (!hasBody) return `@@js:url@@, { method: '${method}' }`
  return `@@js:url@@, {
  method: '${method}',
  headers: { 'content-type': 'application/json' },
  body: @@js:body@@,
}`
}

function python(shape: Shape, { id, name, asset }: NetworkConfig, priceAtomic: bigint): Command {
  const { method, hasBody } = shape
  const isFirst = asset.transfer[0] === 'eip3009'
  const verb = method.toLowerCase()
  const json = hasBody
    ? ", data=@@js:body@@.encode(), headers={'content-type': 'application/json'}"
    : ''
  const lines = [
    'import os',
    '',
    'from eth_account import Account',
    'from x402 import max_amount, x402ClientSync',
    'from x402.http.clients import x402_requests',
    'from x402.mechanisms.evm import EthAccountSigner',
    'from x402.mechanisms.evm.exact import ExactEvmScheme',
    '',
    "signer = EthAccountSigner(Account.from_key(os.environ['PAY_KEY']))",
    'client = x402ClientSync()',
    `client.register('${id}', ExactEvmScheme(signer=signer))`,
    ...(isFirst ? [] : [`client.register_policy(${withoutPermit2})`]),
    `client.register_policy(max_amount(${priceAtomic}))`,
    'with x402_requests(client) as session:',
    `    answer = session.${verb}(@@js:url@@${json})`,
    '    print(answer.text)',
  ]
  const note = `Pays by x402 on ${name}. pip install "x402[evm,requests]"`
  return { name: 'Python', pays: true, note, text: lines.join('\n') }
}

/** `turnpike pay` signs at most a cent without `--max`. */
const unaskedAtomic = 10_000n

function channel({ method, hasBody }: Shape, priceAtomic: bigint, deposit: string): Command {
  const verb = method === (hasBody ? 'POST' : 'GET') ? '' : ` --method ${method}`
  const max = priceAtomic > unaskedAtomic ? ` --max ${dollars(priceAtomic)}` : ''
  const body = hasBody ? ' --body @@sh:body@@' : ''
  return {
    name: 'Channel',
    pays: true,
    note: 'Deposits once, then pays by vouchers. turnpike channels close gets back what is left.',
    text: `turnpike pay @@sh:url@@ --scheme channel --deposit ${deposit}${max}${verb}${body}`,
  }
}

/** Permit2 needs an approval first. */
const withoutPermit2 =
  "lambda _, offers: [o for o in offers if (o.extra or {}).get('assetTransferMethod') != 'permit2']"

function mcp(baseUrl: string, priceAtomic: bigint, tool: string): Command {
  const args = ['mcp', baseUrl, '--max-per-call', dollars(priceAtomic), '--max-per-day', '2']
  const env = { PAY_KEY_FILE: '/path/to/private-key' }
  const settings = { mcpServers: { turnpike: { command: 'turnpike', args, env } } }
  const text = JSON.stringify(settings, null, 2)
  return {
    name: 'MCP',
    pays: true,
    note: `For the settings of an MCP client. The tool is ${tool}.`,
    text: text.replace(
      /\[\s+([^\]]*?)\s+\]/,
      (_, list: string) => `[${list.replace(/\s+/g, ' ')}]`,
    ),
  }
}

/** For a POSIX shell. */
function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}

/** A string of JavaScript, which Python reads as well. */
function literal(text: string): string {
  return `'${JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`
}
