import type { Config, Merchant, Route } from '../../config/Config'
import type { Path } from '../../config/lines'
import type * as Preset from '../../meter/Preset'
import { readText } from '../../net/read-text'

/**
 * A difference between the file and a chain or an upstream, and the entry that it concerns. It has no
 * URL, which may be secret.
 */
export type Finding = { path: Path; message: string }

const timeoutMs = 10_000
const listMaxBytes = 16 * 1024 * 1024

/**
 * Models of the tables that their upstreams do not list. Their prices have no use, and requests for
 * them fail. A list that cannot be read is ignored. Never rejects.
 */
export async function findMissingModels(config: Config): Promise<Finding[]> {
  const lists = new Map<string, Promise<ReadonlySet<string> | undefined>>()
  const found = config.merchants.flatMap((merchant, i) =>
    merchant.routes.map(async (route, j): Promise<Finding[]> => {
      const url = merchant.outOfService === undefined ? listUrl(merchant, route) : undefined
      if (url === undefined) return []
      const asked = lists.get(url) ?? readList(url, merchant.headers)
      lists.set(url, asked)
      const listed = await asked
      const names = Object.keys(route.meter?.models ?? {})
      return names
        .filter((name) => listed !== undefined && !listed.has(name))
        .map((name) => ({
          path: ['merchants', i, 'routes', j, 'meter', 'models', name],
          message: `the upstream of ${merchant.slug} does not list the model ${name}`,
        }))
    }),
  )
  return (await Promise.all(found)).flat()
}

/** The end of a service's path, and the end that names its list of models. */
const endings: Partial<Readonly<Record<Preset.Name, readonly [RegExp, string]>>> = {
  openai: [/\/(?:chat\/completions|completions|responses)$/, '/models'],
  anthropic: [/\/messages$/, '/models?limit=1000'],
  gemini: [/\/models(?:\/.*)?$/, '/models?pageSize=1000'],
}

function listUrl(merchant: Merchant, { meter, upstream, upstreamPath }: Route): string | undefined {
  const base = upstream ?? merchant.upstream
  const ending = meter === undefined ? undefined : endings[meter.preset]
  if (base === undefined || meter === undefined || ending === undefined) return undefined
  const [end, list] = ending
  if (Object.keys(meter.models).length === 0 || !end.test(upstreamPath)) return undefined
  return base.origin + upstreamPath.replace(end, list)
}

async function readList(
  url: string,
  headers: Readonly<Record<string, string>>,
): Promise<ReadonlySet<string> | undefined> {
  try {
    const signal = AbortSignal.timeout(timeoutMs)
    const response = await fetch(url, { headers, redirect: 'manual', signal })
    if (!response.ok) return undefined
    const answer = JSON.parse(await readText(response, listMaxBytes))
    const entries: unknown = answer?.data ?? answer?.models
    if (!Array.isArray(entries)) return undefined
    const names = entries.flatMap((entry) => [entry?.id, entry?.canonical_slug, entry?.name])
    const texts = names.filter((name) => typeof name === 'string')
    return new Set(texts.map((name) => name.replace(/^models\//, '')))
  } catch {
    return undefined
  }
}
