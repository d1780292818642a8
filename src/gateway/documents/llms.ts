import type { Config, NetworkConfig, Route } from '../../config/Config'
import * as Price from '../../meter/Price'
import * as Entitlements from '../../paywall/entitlement/Entitlements'
import * as Catalogue from './Catalogue'
import { type DiscoveryOptions, priceSentence } from './discovery'

/** `/llms.txt` (llmstxt.org): what is sold and how to pay for it, for language models. */
export function llms(config: Config, options: DiscoveryOptions): string {
  const { service } = config
  const { title, baseUrl, facilitatorUrl, guidance, contact } = service
  const { stock } = Catalogue.stockApi(config)
  const listings = Catalogue.offered(config, options.isReady)
  const networks = config.networks.filter((network) =>
    listings.some((listing) => listing.networks.includes(network)),
  )
  const coins = networks.map(({ name, id, asset }) => `${asset.symbol} on ${name} (${id})`)
  let hasByUse = false
  let hasChannels = false
  let isAnyGiven = false
  const sections = listings.map(({ merchant, networks }) => {
    const { title: name, description, slug, routes } = merchant
    const lines = routes.map((route) => {
      const [form] = Catalogue.formsOf(route)
      const url = `${baseUrl}/m/${slug}${route.path}${form?.path ?? ''}`
      const listing = { merchant, networks }
      const good = Catalogue.goodOf(config, listing, route, options)
      hasByUse ||= good.byUse.length > 0
      hasChannels ||= good.byChannel.length > 0
      isAnyGiven ||= Entitlements.isGiven(route)
      const given = Entitlements.linesOf(route, networks).map(([kind, text]) => `${kind}: ${text}`)
      const all = [route.summary, priceSentence(good), ...given]
      // Some of them are whole sentences.
      const what = all.filter(Boolean).map(oneLine).join('. ').replaceAll('.. ', '. ')
      return `- ${route.methods.join(', ')} ${url} - ${Price.short(route)} - ${what}`
    })
    return [
      `## ${oneLine(name)}`,
      '',
      oneLine(description),
      `Parameters and schemas: [${slug}](${baseUrl}/m/${slug}/openapi.json)`,
      '',
      ...lines,
      '',
    ].join('\n')
  })
  return `# ${oneLine(title)}

> ${oneLine(guidance)}

Each request is paid separately with a stablecoin. There are no accounts and no API keys.
Accepted: ${coins.join(', ')}.

1. Send the request. The answer is 402 with MPP challenges (WWW-Authenticate: Payment) and x402
   offers (PAYMENT-REQUIRED, also in the body).
2. Sign one of them and send the same request again with Authorization: Payment or
   PAYMENT-SIGNATURE. No gas is needed.${service.x402V1 ? version1 : ''}
3. The answer has a signed receipt in Payment-Receipt or PAYMENT-RESPONSE. If the upstream
   fails after the payment, the problem has a redeem token: send it as Payment-Redeem with the same
   request, without paying again.
${hasByUse ? byUse : ''}${hasChannels ? byChannel : ''}${isAnyGiven ? signIn : ''}
- [All routes, OpenAPI 3.1](${baseUrl}/openapi.json)
- [All routes, x402 discovery](${baseUrl}/discovery/resources)
- [All other endpoints, OpenAPI 3.1](${baseUrl}/api/openapi.json)
- MCP (streamable HTTP), paid by x402 or MPP: ${baseUrl}/mcp
- x402 facilitator: ${facilitatorUrl} (GET /supported, POST /verify, POST /settle)
${stock === undefined ? '' : `- Tokenized stocks: GET ${stock}/list and ${stock}/quote, POST ${stock}/buy\n`}${contact === undefined ? '' : `- Contact: ${contact}\n`}

${codeSection(config, listings, networks)}
${sections.join('\n')}`
}

const version1 = ` Clients of x402 version 1 pay with X-PAYMENT, and
   send an Idempotency-Key.`

const byUse = `
A route whose price is "up to" also has x402 offers of the scheme upto, where it says so. Sign the
ceiling once: the answer is charged by what it used, and one that failed costs nothing. An event
stream has the headers Payment-Id and Payment-Token: GET /api/payments/{Payment-Id} with the header
Payment-Token answers its receipt once it is settled.
`

const byChannel = `
A route that says "by a channel" also has x402 offers of the scheme batch-settlement. Deposit once, at least
extra.minDeposit, then sign with each request a voucher of all that the channel may be charged: no gas, and no
block to wait for. BatchSettlementEvmScheme of @x402/evm/batch-settlement/client does it; one channel serves all
routes of a merchant. Its refund() asks for what is left, as a GET of any of these URLs with a payload of type
refund. When nobody answers it, withdraw at the contract: extra.withdrawDelay is in seconds. In a shell:
turnpike pay --scheme channel URL, then turnpike channels and turnpike channels close.
`

const signIn = `
Where a route names a trial, a pass or "again", a wallet may have an answer without a payment: sign the
extension sign-in-with-x of the 402 (EIP-4361, personal_sign) and send the request again with
SIGN-IN-WITH-X. @x402/fetch does it with createSIWxClientHook of @x402/extensions, and pays otherwise.
A pass belongs to the wallet that paid for it. Payment-Entitlement says what remains. With "again" a
paid answer has Payment-Redeem, which has it again without signing.
`

function oneLine(text: string): string {
  return text.replace(/\s+/g, ' ').trim()
}

/**
 * The section of programs that buy here, which a reader runs as they are. Without the programs
 * while nothing can be bought by a plain GET.
 */
function codeSection(
  { service }: Pick<Config, 'service'>,
  listings: readonly Catalogue.Listing[],
  accepted: readonly NetworkConfig[],
): string {
  const networks = accepted.filter(({ asset }) => asset.transfer.includes('eip3009'))
  const turnpike = server(service.baseUrl)
  const command = [turnpike.command, ...turnpike.args].join(' ')
  const example = exampleOf(service.baseUrl, listings)
  const programs =
    example === undefined || networks.length === 0
      ? ''
      : `
Each program buys one request with the private key in PAY_KEY. Keep only the networks on which its
wallet has money. The signatures (EIP-3009) need no gas and no approval.

### TypeScript, x402

${fenced('ts', x402(example, networks))}

### TypeScript, MPP

${fenced('ts', mpp(example, networks))}

### Python, x402

For version 2 of the package x402. No test of this software runs it.

${fenced('python', python(example, networks))}
`
  return `## Code
${programs}
### MCP, for any client

The command turnpike mcp is an MCP server on stdio. It lists the tools of this service and pays for
their calls from a wallet, within limits that the user sets. Claude Desktop
(claude_desktop_config.json), Cursor (.cursor/mcp.json) and Claude Code (.mcp.json) take:

${fenced('json', jsonOf({ mcpServers: { turnpike } }))}

VS Code (.vscode/mcp.json) takes:

${fenced('json', jsonOf({ servers: { turnpike: { type: 'stdio', ...turnpike } } }))}

Claude Code, by a command:

${fenced('sh', `claude mcp add --env PAY_KEY_FILE=${keyFile} --transport stdio turnpike -- ${command}`)}
`
}

const keyFile = '/path/to/private-key'

function server(baseUrl: string) {
  const args = ['mcp', baseUrl, '--max-per-call', '0.05', '--max-per-day', '2']
  return { command: 'turnpike', args, env: { PAY_KEY_FILE: keyFile } }
}

type Example = { url: string; priceAtomic: bigint }

/** The first plain GET that is sold on the most networks, if there is one. */
function exampleOf(baseUrl: string, listings: readonly Catalogue.Listing[]): Example | undefined {
  const all = listings.flatMap(({ merchant, networks }) =>
    merchant.routes
      .filter(({ methods }) => methods.includes('GET'))
      .map((route) => ({ merchant, route, networks })),
  )
  const most = Math.max(0, ...all.map(({ networks }) => networks.length))
  const [first] = all.filter(({ networks }) => networks.length === most)
  if (first === undefined) return undefined
  const { merchant, route } = first
  return {
    url: Catalogue.exampleUrl(baseUrl, merchant, route) + queryOf(route),
    priceAtomic: route.priceAtomic,
  }
}

function queryOf(route: Route): string {
  const pairs = route.params
    .filter((param) => param.in === 'query' && (param.required || param.example !== undefined))
    .map((param) => [param.name, `${Catalogue.exampleOf(param)}`].map(encodeURIComponent).join('='))
  return pairs.length === 0 ? '' : `?${pairs.join('&')}`
}

function x402({ url, priceAtomic }: Example, networks: readonly NetworkConfig[]): string {
  const registered = networks.map(
    ({ id, name }) => `  .register('${id}', new ExactEvmScheme(account)) // ${oneLine(name)}`,
  )
  const assets = networks.map(
    ({ id, asset }) =>
      `      { network: '${id}', asset: '${asset.address}', maxAmountPerPayment: '${priceAtomic}' },`,
  )
  return [
    '// npm install @x402/fetch @x402/evm viem',
    "import { ExactEvmScheme } from '@x402/evm/exact/client'",
    "import { wrapFetchWithPayment, x402Client } from '@x402/fetch'",
    "import type { Hex } from 'viem'",
    "import { privateKeyToAccount } from 'viem/accounts'",
    '',
    'const account = privateKeyToAccount(process.env.PAY_KEY as Hex)',
    'const client = new x402Client()',
    ...registered,
    "  .registerPolicy((_, offers) => offers.filter(({ extra }) => extra?.assetTransferMethod !== 'permit2'))",
    '  .setSpendControls({',
    '    allowedAssets: [',
    ...assets,
    '    ],',
    '  })',
    'const pay = wrapFetchWithPayment(fetch, client)',
    `const response = await pay(${JSON.stringify(url)})`,
    'console.log(response.status, await response.text())',
  ].join('\n')
}

function mpp({ url, priceAtomic }: Example, networks: readonly NetworkConfig[]): string {
  const currencies = networks.map(({ id, asset: { address, decimals, eip712 } }) => {
    const domain = `name: ${JSON.stringify(eip712.name)}, version: ${JSON.stringify(eip712.version)}`
    return [
      '    assets.define({',
      `      address: '${address}',`,
      `      decimals: ${decimals},`,
      `      network: '${id}',`,
      `      transfer: { type: 'eip3009', ${domain} },`,
      '    }),',
    ].join('\n')
  })
  return [
    '// npm install mppx viem',
    "import { Mppx } from 'mppx/client'",
    "import { assets, charge } from 'mppx/evm/client'",
    "import type { Hex } from 'viem'",
    "import { privateKeyToAccount } from 'viem/accounts'",
    '',
    'const method = charge({',
    '  account: privateKeyToAccount(process.env.PAY_KEY as Hex),',
    `  maxAtomicAmount: '${priceAtomic}',`,
    '  currencies: [',
    ...currencies,
    '  ],',
    '})',
    'const client = Mppx.create({ methods: [method], polyfill: false })',
    `const response = await client.fetch(${JSON.stringify(url)})`,
    'console.log(response.status, await response.text())',
  ].join('\n')
}

function python({ url, priceAtomic }: Example, networks: readonly NetworkConfig[]): string {
  const registered = networks.map(
    ({ id, name }) => `client.register("${id}", ExactEvmScheme(signer=signer))  # ${oneLine(name)}`,
  )
  return [
    '# pip install "x402[evm,requests]"',
    'import os',
    '',
    'from eth_account import Account',
    'from x402 import x402ClientSync, max_amount',
    'from x402.http.clients import x402_requests',
    'from x402.mechanisms.evm import EthAccountSigner',
    'from x402.mechanisms.evm.exact import ExactEvmScheme',
    '',
    '',
    'def without_permit2(version, offers):',
    '    return [o for o in offers if (o.extra or {}).get("assetTransferMethod") != "permit2"]',
    '',
    '',
    'signer = EthAccountSigner(Account.from_key(os.environ["PAY_KEY"]))',
    'client = x402ClientSync()',
    ...registered,
    'client.register_policy(without_permit2)',
    `client.register_policy(max_amount(${priceAtomic}))`,
    'with x402_requests(client) as session:',
    `    response = session.get(${JSON.stringify(url)})`,
    '    print(response.status_code, response.text)',
  ].join('\n')
}

/** JSON of several lines, with each list on one line. */
function jsonOf(value: object): string {
  const text = JSON.stringify(value, null, 2)
  return text.replace(/\[\s+([^\]]*?)\s+\]/g, (_, list: string) => `[${list.replace(/\s+/g, ' ')}]`)
}

function fenced(language: string, text: string): string {
  return `\`\`\`${language}\n${text}\n\`\`\``
}
