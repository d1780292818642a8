import { isDearer } from '../meter/Meter'
import type { Config } from './Config'
import type { Path } from './lines'
import { isPrivate, secretWordMin } from './values'

export type Warning = { path: Path; message: string }

/** `hasOwnTls`: the service itself ends TLS, without a proxy in front. */
type Exposure = { hasOwnTls: boolean }

/**
 * Warnings of allowed settings that may cost the operator money or upstreams, with their places.
 */
export function warningsOf(config: Config, exposure: Exposure): Warning[] {
  return [
    ...exposuresOf(config, exposure),
    ...contactsOf(config),
    ...shortSecrets(config),
    ...openFacilitator(config),
    ...openModels(config),
    ...openUpto(config),
  ]
}

/** Warnings of how clients reach the service. A start prints them, too. */
export function exposuresOf({ service }: Config, { hasOwnTls }: Exposure): Warning[] {
  const { baseUrl, listen, trustProxy } = service
  const url = new URL(baseUrl)
  if (url.protocol === 'http:') {
    if (isPrivate(url)) return []
    const message =
      `base_url ${baseUrl} is public and not encrypted: anyone on the way can read and change ` +
      `answers; serve it by TLS, and write https://${url.host}`
    return [{ path: ['service', 'base_url'], message }]
  }
  const name = listen.hostname.includes(':') ? `[${listen.hostname}]` : listen.hostname
  if (hasOwnTls || trustProxy > 0 || !isPrivate(new URL(`http://${name}`))) return []
  const message =
    'trust_proxy is 0, but base_url is https and listen is a private address: all clients share ' +
    'the limits of the proxy in front; write the number of proxies, such as trust_proxy = 1'
  return [{ path: ['service', 'trust_proxy'], message }]
}

/** Reserved for documentation by RFC 2606. */
const sample = /\bexample\.(?:com|net|org)\b/i

/** Upstreams that require a contact may block clients without a real one. */
function contactsOf({ service, merchants }: Config): Warning[] {
  const fault = 'is a sample address; write one that reaches you'
  const warnings: Warning[] = []
  if (service.contact !== undefined && sample.test(service.contact))
    warnings.push({ path: ['service', 'contact'], message: `contact ${service.contact} ${fault}` })
  for (const [index, { headers }] of merchants.entries())
    for (const [name, value] of Object.entries(headers))
      if (sample.test(value))
        warnings.push({ path: ['merchants', index, 'headers', name], message: `${name} ${fault}` })
  return warnings
}

/** Values from the environment that can only be redacted after their name, or not at all. */
function shortSecrets({ merchants }: Config): Warning[] {
  return merchants.flatMap(({ headers, secrets, routes }, index) => {
    const short = [...secrets, ...routes.flatMap(({ pathSecrets }) => pathSecrets)].filter(
      ({ length }) => length < secretWordMin,
    )
    if (short.length === 0) return []
    const merchant: Path = ['merchants', index]
    const holds = (value: string) => short.some((part) => value.includes(part))
    const header = Object.keys(headers).find((name) => holds(headers[name] ?? ''))
    const path: Path = header === undefined ? merchant : [...merchant, 'headers', header]
    const message =
      `a value from the environment has fewer than ${secretWordMin} characters: it is redacted in answers ` +
      'only after its name; use a longer one, or write here what is public'
    return [{ path, message }]
  })
}

function openUpto({ facilitator }: Config): Warning[] {
  const { apiKeyHashes, uptoWithoutKeys } = facilitator
  if (!uptoWithoutKeys || apiKeyHashes.length > 0) return []
  const path = ['facilitator', 'upto_without_keys']
  const message =
    'upto_without_keys is true: a buyer that reaches /settle can charge its own ceiling with nothing ' +
    'after a server has verified it; write api_keys, or let only your servers reach it'
  return [{ path, message }]
}

function openFacilitator({ facilitator, networks }: Config): Warning[] {
  const { apiKeyHashes, minAmountAtomic } = facilitator
  const spends = networks.some(({ gasPerDayWei }) => gasPerDayWei.facilitator > 0n)
  if (!spends || apiKeyHashes.length > 0 || minAmountAtomic > 0n) return []
  const path = ['facilitator', 'min_amount']
  const message =
    "min_amount is 0: anyone can spend the facilitator's gas of a day on payments of almost " +
    'nothing; write the least that you sell for, or api_keys'
  return [{ path, message }]
}

/** Tables in which a model is dearer than one that the table lacks. */
function openModels({ merchants }: Config): Warning[] {
  return merchants.flatMap(({ slug, routes }, i) =>
    routes.flatMap(({ path, meter }, j): Warning[] => {
      if (meter === undefined || meter.limits.modelsOnly) return []
      const { models, rates } = meter
      const dear = Object.keys(models).find((model) =>
        Object.entries(models[model] ?? {}).some(([unit, rate]) => {
          const other = rates[unit]
          return rate.priceScaled > 0n && (other === undefined || isDearer(rate, other))
        }),
      )
      if (dear === undefined) return []
      const message =
        `${dear} of ${slug}${path} is dearer than a model that the table lacks: an upstream that takes ` +
        'other names for it may sell it at the prices of units; write models_only = true in limits'
      return [{ path: ['merchants', i, 'routes', j, 'meter', 'models', dear], message }]
    }),
  )
}
