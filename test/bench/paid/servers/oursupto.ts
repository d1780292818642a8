// The gateway with one more merchant, whose route has a meter. Arguments: the chain's URL, the
// upstream's URL.

import { shippedConfig } from '../../shipped'
import { modelMerchant } from '../model'
import { networkId } from '../network'
import { serveGateway } from './gateway'

const [rpcUrl = '', upstream = ''] = process.argv.slice(2)
await serveGateway(shippedConfig({ [networkId]: rpcUrl }, { text: modelMerchant, upstream }))
