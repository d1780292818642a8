import type { Hex } from 'viem'
import type { Config } from '../../src/config/Config'
import { createFacilitator } from '../../src/facilitator/handler'
import { createPayees } from '../../src/facilitator/payees'
import { createSettleRuns } from '../../src/facilitator/settle-once'
import { createBudget } from '../../src/http/body'
import { createRegistry } from '../../src/http/metrics'
import { createRateLimit } from '../../src/http/rate-limit'
import { silent } from '../../src/log'
import type { ApprovalSponsor } from '../../src/settlement/sponsorship'
import { shippedConfig } from '../bench/shipped'
import type { Answer, Body } from './facilitation'
import { relayers, type Seller, type UptoCluster } from './upto-cluster'

export type Facilitator = {
  verify(body: Body): Promise<Answer>
  /** `key`: the Idempotency-Key. */
  settle(body: Body, key?: string): Promise<Answer>
}

/** The hash of an API key, as a configuration lists it. */
const hashOf = (key: string): Hex => `0x${new Bun.CryptoHasher('sha256').update(key).digest('hex')}`

type Options = {
  apiKey?: string
  sponsor?: ApprovalSponsor
  /** The facilitator's gas of a day, of which payees have shares. */
  gasPerDayWei?: bigint
  /** Its clock. That of the settlement stays. */
  now?: () => number
}

/** The facilitator of a gateway; its requests arrive without a socket. */
export function facilitatorAt(
  { network }: UptoCluster,
  { settlement, ledger }: Seller,
  { apiKey, sponsor, gasPerDayWei, now = Date.now }: Options = {},
): Facilitator {
  const shipped = shippedConfig()
  const config: Config = {
    ...shipped,
    networks: [network],
    facilitator: {
      ...shipped.facilitator,
      payTo: 'any',
      apiKeyHashes: apiKey === undefined ? [] : [hashOf(apiKey)],
      ...{ verifyPerMinute: 1e6, settlePerMinute: 1e6, uptoWithoutKeys: true },
    },
  }
  const shared = {
    ...network,
    gasPerDayWei: {
      ...network.gasPerDayWei,
      ...(gasPerDayWei !== undefined && { facilitator: gasPerDayWei }),
    },
  }
  const payees = createPayees({ ledger, networks: [shared], priceOf: () => 1n, now: Date.now })
  const facilitator = createFacilitator({
    config,
    settlement,
    sponsor,
    relayers,
    ownAccounts: [settlement.desk],
    budget: createBudget(1e6),
    rateLimit: createRateLimit(),
    now,
    log: silent,
    requestId: () => 'req_test',
    settling: createSettleRuns(payees, new Map()),
    calls: createRegistry().counter('calls', '', ['operation', 'answer']),
    accepts: () => true,
  })
  const call = async (operation: 'verify' | 'settle', body: Body, key?: string) => {
    const headers = {
      'content-type': 'application/json',
      ...(apiKey !== undefined && { authorization: `Bearer ${apiKey}` }),
      ...(key !== undefined && { 'idempotency-key': key }),
    }
    const url = `http://127.0.0.1/${operation}`
    const request = new Request(url, { method: 'POST', headers, body: JSON.stringify(body) })
    const response = await facilitator.handle(operation, request, () => '127.0.0.1')
    const json = (await response.json()) as Record<string, unknown>
    return { status: response.status, headers: response.headers, json }
  }
  return {
    verify: (body) => call('verify', body),
    settle: (body, key) => call('settle', body, key),
  }
}
