import type { Config } from './Config'
import type { Path } from './lines'
import { secretWordMin } from './values'

type Warning = { path: Path; message: string }

/**
 * Warnings of allowed settings that may cost the operator money or upstreams, with their places.
 */
export function warningsOf(config: Config): Warning[] {
  return [...contactsOf(config), ...shortSecrets(config), ...openFacilitator(config)]
}

/** Reserved for documentation by RFC 2606. */
const sample = /\bexample\.(?:com|net|org)\b/i

/** Upstreams that require a contact may block clients without a real one. */
function contactsOf({ service, merchants }: Config): Warning[] {
  const fault = 'is a sample address; write one that reaches you'
  const warnings: Warning[] = []
  if (sample.test(service.contact))
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
