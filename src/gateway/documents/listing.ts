import type { Config, Route } from '../../config/Config'
import * as Price from '../../meter/Price'
import * as ByUse from '../../paywall/usage/ByUse'
import * as X402 from '../../protocol/X402'
import * as Bazaar from './Bazaar'
import * as Catalogue from './Catalogue'
import type { DiscoveryOptions } from './discovery'
import * as Snippet from './Snippet'

type Json = Record<string, unknown>

/** The list of paid resources that x402 indexers read at `/.well-known/x402`. */
export function wellKnown(config: Config, options: DiscoveryOptions): Json {
  const { baseUrl, guidance, facilitatorUrl } = config.service
  const resources = Catalogue.offered(config, options.isReady).flatMap(({ merchant }) =>
    merchant.routes.map((route) => Catalogue.exampleUrl(baseUrl, merchant, route)),
  )
  return {
    version: 1,
    resources,
    instructions: guidance,
    receiptSigner: options.receiptAddress,
    facilitator: facilitatorUrl,
    ...Catalogue.stockApi(config),
  }
}

/** Indexers refuse a longer name of a service. */
const serviceNameMax = 32

/**
 * Every route as an entry of `GET /discovery/resources` (x402 v2 section 8), in the order of the
 * file. `updatedAt` is unix ms.
 */
export function resources(config: Config, options: DiscoveryOptions & { updatedAt: number }) {
  const { baseUrl, title } = config.service
  const byUseOf = byUseFor(config, options)
  return Catalogue.offered(config, options.isReady).flatMap(({ merchant, networks }) =>
    merchant.routes.map((route) => {
      const [method = 'GET'] = route.methods
      const { name, brief: _, ...extension } = Bazaar.extension(merchant, route, method)
      const offers = networks.map((network) => ({
        network,
        payTo: merchant.payout,
        amountAtomic: route.priceAtomic,
      }))
      const byUse = byUseOf({ merchant, networks }, route)
      return {
        resource: Catalogue.exampleUrl(baseUrl, merchant, route),
        type: 'http',
        x402Version: 2,
        accepts: X402.accepts(offers, ({ network, amountAtomic }) =>
          byUse.some(({ id }) => id === network.id)
            ? options.facilitators?.(network.id, amountAtomic)[0]
            : undefined,
        ),
        lastUpdated: Math.floor(options.updatedAt / 1000),
        description: route.description || route.summary,
        mimeType: 'application/json',
        serviceName: merchant.title.slice(0, serviceNameMax),
        tags: [merchant.tag],
        metadata: {
          category: merchant.tag,
          provider: title,
          operationId: Catalogue.operationId(merchant, route),
          openapi: `${baseUrl}/m/${merchant.slug}/openapi.json`,
        },
        extensions: { [name]: extension },
      }
    }),
  )
}

/** `/llms.txt` (llmstxt.org): what is sold and how to pay for it, for language models. */
export function llms(config: Config, options: DiscoveryOptions): string {
  const { title, baseUrl, facilitatorUrl, guidance, contact } = config.service
  const { stock } = Catalogue.stockApi(config)
  const listings = Catalogue.offered(config, options.isReady)
  const networks = config.networks.filter((network) =>
    listings.some((listing) => listing.networks.includes(network)),
  )
  const coins = networks.map(({ name, id, asset }) => `${asset.symbol} on ${name} (${id})`)
  const byUseOf = byUseFor(config, options)
  let hasByUse = false
  const sections = listings.map(({ merchant, networks }) => {
    const { title: name, description, slug, routes } = merchant
    const lines = routes.map((route) => {
      const [form] = Catalogue.formsOf(route)
      const url = `${baseUrl}/m/${slug}${route.path}${form?.path ?? ''}`
      const isByUse = byUseOf({ merchant, networks }, route).length > 0
      hasByUse ||= isByUse
      const prices = [Price.sentence(route), isByUse ? ByUse.sentence : ''].filter(Boolean)
      const what = [route.summary, prices.join(' ')].filter(Boolean).map(oneLine).join('. ')
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
   PAYMENT-SIGNATURE. No gas is needed.
3. The answer has a signed receipt in Payment-Receipt or PAYMENT-RESPONSE. If the upstream
   fails after the payment, the problem has a redeem token: send it as Payment-Redeem with the same
   request, without paying again.
${hasByUse ? byUse : ''}
- [All routes, OpenAPI 3.1](${baseUrl}/openapi.json)
- [All routes, x402 discovery](${baseUrl}/discovery/resources)
- [All other endpoints, OpenAPI 3.1](${baseUrl}/api/openapi.json)
- MCP (streamable HTTP), paid by x402 or MPP: ${baseUrl}/mcp
- x402 facilitator: ${facilitatorUrl} (GET /supported, POST /verify, POST /settle)
${stock === undefined ? '' : `- Tokenized stocks: GET ${stock}/list and ${stock}/quote, POST ${stock}/buy\n`}${contact === undefined ? '' : `- Contact: ${contact}\n`}

${Snippet.section(config, { listings, networks })}
${sections.join('\n')}`
}

function byUseFor(config: Config, { facilitators }: DiscoveryOptions) {
  return (listing: Catalogue.Listing, route: Route) =>
    Catalogue.networksByUse(config, listing, route, facilitators)
}

const byUse = `
A route whose price is "up to" also has x402 offers of the scheme upto, where it says so. Sign the
ceiling once: the answer is charged by what it used, and one that failed costs nothing. An event
stream has the headers Payment-Id and Payment-Token: GET /api/payments/{Payment-Id} with the header
Payment-Token answers its receipt once it is settled.
`

function oneLine(text: string): string {
  return text.replace(/\s+/g, ' ').trim()
}
