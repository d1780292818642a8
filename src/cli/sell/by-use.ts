import type { Config, NetworkConfig } from '../../config/Config'
import * as ByUse from '../../paywall/usage/ByUse'
import * as Amount from '../../protocol/Amount'
import * as Permit from '../../protocol/Permit'
import * as Upto from '../../protocol/Upto'
import { ask, withoutCode } from '../nodes'
import type { Finding } from './models'

/** Why routes with a meter are not sold by the x402 scheme `upto`; they are sold by `exact` then. */

/** The reasons that the file itself shows. */
export function findUnsold({ service, merchants }: Config): Finding[] {
  const most = service.unsettledMaxAtomic
  return merchants.flatMap((merchant, i): Finding[] => {
    const { slug, timeoutMs, routes } = merchant
    const metered = routes.some(({ meter }) => meter !== undefined)
    if (metered && !ByUse.mayBeByUse(merchant)) {
      const message =
        `timeout_ms of ${slug} is ${timeoutMs}: above ${ByUse.timeoutMaxMs} its metered routes are not ` +
        'sold by upto, because the signature would end before a slow answer is settled'
      return [{ path: ['merchants', i, 'timeout_ms'], message }]
    }
    return routes.flatMap(({ meter, path, priceAtomic }, j): Finding[] => {
      if (meter === undefined || priceAtomic <= most) return []
      const message =
        `the price of ${slug}${path} is above unsettled_max (${Amount.toDecimal(most, 6)}): a request ` +
        'with a ceiling above it is not sold by upto'
      return [{ path: ['merchants', i, 'routes', j, 'price'], message }]
    })
  })
}

/**
 * The reasons that the chains show: the networks of metered routes without the contracts of the
 * scheme. A chain that does not answer is reported by another check. Never rejects.
 */
export async function findMissingProxies(config: Config): Promise<Finding[]> {
  const selling = config.networks.filter(({ id }) =>
    config.merchants.some(
      (merchant) =>
        merchant.networks.includes(id) &&
        merchant.routes.some((route) => ByUse.isOffered(config.service, merchant, route)),
    ),
  )
  return (await Promise.all(selling.map(missingOn))).flat()
}

async function missingOn({ id, rpcUrls }: NetworkConfig): Promise<Finding[]> {
  const contracts = [
    ['x402UptoPermit2Proxy', Upto.proxyAddress],
    ['Permit2', Permit.permit2Address],
  ] as const
  const missing = await ask(rpcUrls, (client) => withoutCode(client, contracts))
  return (missing ?? []).map(([name, address]) => ({
    path: ['networks', id],
    message: `${name}: no contract at ${address} on ${id}: nothing is sold by upto there`,
  }))
}
