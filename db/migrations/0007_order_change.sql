-- Only a swap that delivered gives change, and never more than a decimal above zero.
ALTER TABLE `orders` ADD `returned_atomic` text CHECK (`returned_atomic` IS NULL OR (`state` = 'delivered' AND typeof(`returned_atomic`) = 'text' AND `returned_atomic` NOT GLOB '*[^0-9]*' AND `returned_atomic` NOT GLOB '0*' AND `returned_atomic` <> ''));
