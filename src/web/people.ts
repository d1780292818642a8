import type { Config, NetworkConfig } from '../config/Config'
import { extract } from '../paywall/extract'
import * as Json from '../protocol/Json'
import { dollars } from './catalogue'
import * as Example from './Example'
import { type Html, html } from './html'
import { layout, pageHeaders } from './layout'
import { walletPanel } from './panel'

type Priced = { network: NetworkConfig; amountAtomic: bigint }

/**
 * Whether a browser opens the address for a person to read. A browser that presents a payment is driven
 * by a program, which paid for the answer as it is.
 */
export function isNavigation({ method, headers }: Request): boolean {
  return (
    headers.get('sec-fetch-mode') === 'navigate' &&
    method === 'GET' &&
    headers.get('accept')?.includes('text/html') === true &&
    extract(headers).kind === 'none'
  )
}

/**
 * The same answer with a page as its body, when it is a problem: the status and the headers stay, so
 * the page of a 402 has its challenges, too. Other answers are returned as they are.
 */
export async function forPeople(
  config: Config,
  request: Request,
  response: Response,
): Promise<Response> {
  if (response.headers.get('content-type') !== 'application/problem+json') return response
  const problem = Json.parse(await response.text())
  if (!Json.isObject(problem)) return response
  const target = targetOf(request)
  const page = {
    title: textOf(problem, 'title'),
    path: undefined,
    main: mainOf(config, problem, target),
  }
  const headers = new Headers(response.headers)
  headers.delete('content-length')
  for (const [name, value] of Object.entries(pageHeaders())) headers.set(name, value)
  return new Response(layout(config, page), { status: response.status, headers })
}

function mainOf(config: Config, problem: Json.JsonObject, target: string): Html {
  const offers = offersOf(config, problem)
  return offers.length === 0 ? problemPage(problem) : paywallPage(config, problem, target, offers)
}

/** What the address sells, and the ways to pay for it. */
function paywallPage(
  config: Config,
  problem: Json.JsonObject,
  target: string,
  offers: readonly Priced[],
): Html {
  const resource = Json.member(problem, 'resource')
  const description = Json.isObject(resource) ? textOf(resource, 'description') : ''
  const [first] = offers
  const commands = Example.commands(
    { method: 'GET', target, body: undefined },
    {
      baseUrl: config.service.baseUrl,
      network: first?.network,
      priceAtomic: first?.amountAtomic ?? 0n,
    },
  )
  const price = first === undefined ? '' : dollars(first.amountAtomic)
  return html`<p class="quiet">${config.service.title} sells this answer</p>
<h1>${description || 'A paid answer'}</h1>
<p class="lead"><strong class="price">$${price}</strong> for one request. You sign a transfer of a stablecoin, the payment is settled, and the answer appears here.</p>
${faultsOf(problem)}
${walletPanel({ method: 'GET', target, body: '', offers })}
<details><summary>Pay by a command</summary>
<div class="inside">${commands.map(
    ({ name, note, text }) =>
      html`<div class="command"><p><strong>${name}</strong> <span class="quiet">${note}</span></p><pre><code>${text}</code></pre></div>`,
  )}</div></details>
<p><a href="/">All that is sold here</a></p>`
}

function faultsOf(problem: Json.JsonObject): Html | false {
  const faults = Json.member(problem, 'invalidParams')
  if (!Array.isArray(faults) || faults.length === 0) return false
  return html`<p class="fault">This request cannot be served as it is:</p>
<ul>${faults.map((fault) =>
    Json.isObject(fault)
      ? html`<li><code>${textOf(fault, 'name')}</code>: ${textOf(fault, 'reason')}</li>`
      : undefined,
  )}</ul>`
}

function problemPage(problem: Json.JsonObject): Html {
  const id = textOf(problem, 'requestId')
  return html`<h1>${textOf(problem, 'title')}</h1>
<p class="lead">${textOf(problem, 'detail')}</p>
${faultsOf(problem)}
<p><a href="/">See what is sold here</a></p>
<p class="quiet">Status ${textOf(problem, 'status')}, code <code>${textOf(problem, 'code')}</code>${id !== '' && html`, request <code>${id}</code>`}</p>`
}

/** The offers of the scheme `exact` whose network and asset are configured, one for each network. */
function offersOf({ networks }: Config, problem: Json.JsonObject): Priced[] {
  const accepts = Json.member(problem, 'accepts')
  if (!Array.isArray(accepts)) return []
  return networks.flatMap((network) => {
    const own = accepts.find(
      (each) =>
        Json.isObject(each) &&
        each.scheme === 'exact' &&
        each.network === network.id &&
        textOf(each, 'asset').toLowerCase() === network.asset.address.toLowerCase(),
    )
    if (!Json.isObject(own)) return []
    return [{ network, amountAtomic: Json.uint(own, 'amount') }]
  })
}

function textOf(object: Json.JsonObject, name: string): string {
  const value = Json.member(object, name)
  return typeof value === 'string' || typeof value === 'number' ? String(value) : ''
}

/** Path and query, as the client wrote them. */
function targetOf({ url }: Request): string {
  return url.replace(/^https?:\/\/[^/?#]*/, '') || '/'
}
