// The gateway with one more merchant, which sells by channels. Arguments: the chain's URL, the upstream's
// URL.

import { account } from '../../../../src/demo/accounts'
import { networkId } from '../../paid/network'
import { serveGateway } from '../../paid/servers/gateway'
import { shippedConfig, shippedEnv } from '../../shipped'
import { merchantText } from '../merchant'

const [rpcUrl = '', upstream = ''] = process.argv.slice(2)
// The reference sends from account 0, on the same chain.
const env = {
  ...shippedEnv,
  RELAYER_KEYS: account(2).privateKey,
  RECEIVER_AUTHORIZER_KEY: account(6).privateKey,
}
await serveGateway(shippedConfig({ [networkId]: rpcUrl }, { text: merchantText, upstream }), {
  env,
})
