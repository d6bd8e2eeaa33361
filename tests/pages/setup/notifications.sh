# needs: smtp
servers
