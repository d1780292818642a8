// The gateway with one more merchant, whose route has a meter. Arguments: the chain's URL, the
// upstream's URL, and a file for what the verification of each payment took.

import { appendFileSync } from 'node:fs'
import type { App } from '../../../../src/app'
import { shippedConfig } from '../../shipped'
import { modelMerchant } from '../model'
import { networkId } from '../network'
import { serveGateway } from './gateway'

const [rpcUrl = '', upstream = '', file] = process.argv.slice(2)

/** When the clock was read last, performance.now(). */
let readAt = 0

/**
 * Appends a line for each authorization: its id, and the time from its start to the reading of the clock
 * for its row, ms. That is the verification, without the commit.
 */
function noteVerifications(to: string, { settlement: { authorizations } }: App): void {
  const { authorize } = authorizations
  authorizations.authorize = async (...input) => {
    const startedAt = performance.now()
    const result = await authorize(...input)
    if (result.kind === 'authorized') {
      const line = `${result.authorization.id} ${readAt - startedAt}\n`
      // Not while a buyer waits for its first byte.
      setTimeout(() => appendFileSync(to, line), 20)
    }
    return result
  }
}

const config = shippedConfig({ [networkId]: rpcUrl }, { text: modelMerchant, upstream })
await serveGateway(
  config,
  file === undefined
    ? {}
    : {
        now() {
          readAt = performance.now()
          return Date.now()
        },
        onStart: (app) => noteVerifications(file, app),
      },
)
